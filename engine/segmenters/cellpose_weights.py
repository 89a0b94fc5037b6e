"""Weights of Cellpose networks: found by name or path, told apart, measured, never guessed.

Cellpose itself logs a warning and takes another network where a name or file is not there; a run
that costs hours needs an error instead, before its first tile.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import zipfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import MissingExtraError, SegmenterError

BUNDLED = "nuclei-tiny"
"""A small network that ships with cytopave; for demos and tests, not for research."""
NOMINAL_DIAMETER = 30.0
"""Object diameter in pixels to which Cellpose scales where nothing else is known."""

type Generation = Literal[3, 4]


class Encoder(BaseModel):
    """Sizes of a SAM-style image encoder, as its tensors tell them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    depth: int
    embed_dim: int
    num_heads: int
    mlp_ratio: float
    out_chans: int
    window_size: int
    global_attn_indexes: tuple[int, ...]


VIT_L = Encoder(
    depth=24,
    embed_dim=1024,
    num_heads=16,
    mlp_ratio=4.0,
    out_chans=256,
    window_size=14,
    global_attn_indexes=(5, 11, 17, 23),
)
"""The encoder of Cellpose-SAM, the one that Cellpose builds by itself."""
VIT_L_PARAMETERS = 304_628_930


class Network(BaseModel):
    """What was found out about the weights.

    Attributes:
        cellpose: Version of Cellpose that the run was planned with.
        generation: Cellpose 3 (a U-Net) or 4 (a transformer).
        sha256: Hash of the file.
        parameters: Number of weights.
        stored_bytes: Their size in the file's types.
        diam_mean: Diameter in pixels to which objects are scaled before the network.
        diam_labels: Typical diameter of the objects that it was trained on, in pixels.
        encoder: Sizes of a SAM-style encoder; None for a U-Net and for DINO.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cellpose: str
    generation: Generation
    sha256: str
    parameters: int
    stored_bytes: int
    diam_mean: float
    diam_labels: float
    encoder: Encoder | None


def installed() -> tuple[str, Generation]:
    """Version of the installed Cellpose, and which of the two supported kinds it is.

    Raises:
        MissingExtraError: Cellpose is not installed.
        SegmenterError: A version whose interface is another one.
    """
    try:
        version = importlib.metadata.version("cellpose")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(
            'Cellpose is not installed: pip install "cytopave[cellpose]"'
        ) from None
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if (4, 2) <= numbers < (5, 0):
        return version, 4
    if numbers == (3, 1):
        return version, 3
    raise SegmenterError(
        f"Cellpose {version} is not supported: install 4.2 or later in the 4 series "
        '(pip install "cytopave[cellpose]"), or 3.1.1.3 for networks of Cellpose 3 '
        '(pip install "cytopave[cellpose3]")'
    )


def model_directory() -> Path:
    """Where Cellpose keeps its models: CELLPOSE_LOCAL_MODELS_PATH or ``~/.cellpose/models``."""
    folder = os.environ.get("CELLPOSE_LOCAL_MODELS_PATH")
    return Path(folder) if folder else Path.home() / ".cellpose" / "models"


def find(model: str) -> Path:
    """The file that a model's name or path means, for the installed Cellpose.

    In this order: the bundled network's name, an existing file, a file in Cellpose's model folder.

    Raises:
        SegmenterError: Nothing of that name; the message says how to get it or what there is.
        MissingExtraError: Cellpose is not installed.
    """
    _, generation = installed()
    if model == BUNDLED:
        if generation == 3:
            raise SegmenterError(
                f"{BUNDLED!r} is a network for Cellpose 4 and Cellpose 3 is installed: "
                'pip install "cytopave[cellpose]"'
            )
        return Path(__file__).parent / "models" / "nuclei_tiny_cp4.pt"
    path = Path(model).expanduser()
    if path.is_file():
        return path.absolute()
    if model.startswith("cpdino"):
        _require_dinov3(model)
    if "/" not in model:
        stored = model_directory() / _file_name(model, generation)
        if stored.is_file():
            return stored
    raise SegmenterError(_not_found(model, generation))


def known_names(generation: Generation) -> list[str]:
    """Names that the installed Cellpose downloads by, less those that need other packages."""
    # Read and not imported: importing Cellpose takes PyTorch and seconds, before a line of error.
    spec = importlib.util.find_spec("cellpose")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("models.py").read_text()
    lists = (
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_NAMES"
    )
    return [n for n in dict.fromkeys(next(lists)) if "transformer" not in n]


def _file_name(model: str, generation: Generation) -> str:
    # Cellpose 3 stores its three oldest models under the name of their first PyTorch version
    if generation == 3 and model in ("cyto", "cyto2", "nuclei"):
        return f"{model}torch_0"
    return model


def _not_found(model: str, generation: Generation) -> str:
    folder = model_directory()
    if model in known_names(generation):
        fetch = "cache_model_path" if generation == 4 else "model_path"
        return (
            f"the Cellpose model {model!r} is not on this machine (looked in {folder}): fetch it "
            'once, where there is internet, by running python -c "from cellpose.models import '
            f"{fetch}; {fetch}('{model}')\", or copy the file there; workers never download"
        )
    if "/" in model or Path(model).suffix:
        return f"there is no model file {model!r}: give the path of a file, or a model's name"
    own = sorted(p.name for p in folder.glob("*") if p.is_file() and p.suffix not in (".txt",))
    if generation == 4 and model in _OF_CELLPOSE_3:
        return (
            f"{model!r} is a model of Cellpose 3 and Cellpose 4 is installed, which cannot run it: "
            'take cpsam_v2, or install Cellpose 3 (pip install "cytopave[cellpose3]")'
        )
    names = [*([BUNDLED] if generation == 4 else []), *known_names(generation), *own]
    return (
        f"Cellpose {generation} knows no model {model!r}: take one of "
        f"{', '.join(dict.fromkeys(names))}, or the path of a model file"
    )


_OF_CELLPOSE_3 = frozenset(
    {"cyto", "cyto2", "cyto3", "nuclei", "cyto2_cp3", "tissuenet_cp3", "livecell_cp3"}
    | {"yeast_PhC_cp3", "yeast_BF_cp3", "bact_phase_cp3", "bact_fluor_cp3", "deepbacs_cp3"}
)


@functools.lru_cache(maxsize=8)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(path: Path) -> str:
    """Hash of a file; kept for the process while the file's size and time stay."""
    stat = path.stat()
    return _sha256(path, stat.st_size, stat.st_mtime_ns)


def inspect(path: Path) -> Network:
    """Read what a weights file holds, and refuse what the installed Cellpose cannot run.

    Raises:
        SegmenterError: Not a Cellpose network, or one of the other generation.
    """
    version, generation = installed()
    tensors = _tensors(path)
    found = _generation(tensors, path)
    if found != generation:
        raise SegmenterError(
            f"{path} is a network of Cellpose {found} and Cellpose {version} is installed, which "
            f"cannot run it: take a model of Cellpose {generation}, or "
            f'pip install "cytopave[{"cellpose3" if found == 3 else "cellpose"}]"'
        )
    return Network(
        cellpose=version,
        generation=found,
        sha256=sha256(path),
        parameters=sum(t.numel() for t in tensors.values()),
        stored_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
        encoder=_encoder(tensors) if found == 4 else None,
        **_diameters(tensors, path, found),
    )


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    # Tensors of a plain archive are mapped, not read; deflated members cannot be mapped.
    mapped = zipfile.is_zipfile(path) and not _deflated(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        if all(isinstance(t, torch.Tensor) for t in state.values()):
            return dict(state)
    except Exception as error:  # noqa: BLE001 - torch raises whatever the bytes provoke
        raise SegmenterError(
            f"{path} is not a Cellpose model file (PyTorch cannot read it: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}); give the file "
            "that Cellpose saved"
        ) from None
    raise SegmenterError(f"{path} is a PyTorch file but holds no Cellpose network")


def _deflated(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(i.compress_type != zipfile.ZIP_STORED for i in archive.infolist())


def _generation(tensors: dict[str, Any], path: Path) -> Generation:
    if "W2" in tensors:
        if "encoder.cls_token" in tensors:
            _require_dinov3(str(path))
        return 4
    if "output.2.weight" in tensors and len(tensors["output.2.weight"]) == 3:
        return 3
    raise SegmenterError(f"{path} is a PyTorch file but holds no Cellpose network")


def _require_dinov3(model: str) -> None:
    if importlib.util.find_spec("dinov3") is None:
        raise SegmenterError(
            f"{model} is built on DINOv3, whose package is not installed and not in the package "
            "index: install dinov3 from its authors' repository, or take cpsam_v2"
        )


def tensor_names(path: Path) -> set[str]:
    """Names of the tensors that a weights file holds."""
    return set(_tensors(path))


def _diameters(tensors: dict[str, Any], path: Path, generation: Generation) -> dict[str, float]:
    def stored(name: str, default: float) -> float:
        return float(tensors[name].item()) if name in tensors else default

    if generation == 4:  # scales to 30 pixels whatever the file says
        return {
            "diam_mean": NOMINAL_DIAMETER,
            "diam_labels": stored("diam_labels", NOMINAL_DIAMETER),
        }
    # the exception is Cellpose's own; the file does not know it
    mean = 17.0 if path.name == "nucleitorch_0" else stored("diam_mean", NOMINAL_DIAMETER)
    return {"diam_mean": mean, "diam_labels": stored("diam_labels", mean)}


def _encoder(tensors: dict[str, Any]) -> Encoder | None:
    if "encoder.cls_token" in tensors:
        return None
    shape = {n.removeprefix("encoder."): tuple(t.shape) for n, t in tensors.items()}
    depth = 1 + max(int(n.split(".")[1]) for n in shape if n.startswith("blocks."))
    width = shape["patch_embed.proj.weight"][0]
    # a table of relative positions has one row per offset: 2 * window - 1 of them
    rows = [shape[f"blocks.{i}.attn.rel_pos_h"][0] for i in range(depth)]
    return Encoder(
        depth=depth,
        embed_dim=width,
        num_heads=width // shape["blocks.0.attn.rel_pos_h"][1],
        mlp_ratio=shape["blocks.0.mlp.lin1.weight"][0] / width,
        out_chans=shape["neck.0.weight"][0],
        window_size=(min(rows) + 1) // 2 if min(rows) < max(rows) else 0,
        global_attn_indexes=tuple(i for i, n in enumerate(rows) if n == max(rows)),
    )
