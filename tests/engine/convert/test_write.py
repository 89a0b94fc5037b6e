"""Conversions that end early: nothing half-written is seen, and the rest is made later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import tifffile
from converted import conversions, level, means

from cytopave.engine.convert import conversion as sizes
from cytopave.engine.convert import write
from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.image import open_image

if TYPE_CHECKING:
    from cytopave.engine.convert.conversion import Conversion

SCRIPT = """
import sys
from cytopave.engine.convert import write
from cytopave.engine.convert.conversion import Conversion
write.convert_whole(Conversion.model_validate_json(sys.stdin.read()), {})
"""
# The sixth group is written and not yet noted: then it says so, and goes no further.
STOPS = """
import signal
from cytopave.engine.convert.conversion import Conversion
commit = Conversion.commit
def stop(conversion, group):
    if group == 5:
        print("here", flush=True)
        signal.pause()
    commit(conversion, group)
Conversion.commit = stop
"""


@pytest.fixture
def pixels() -> np.ndarray:
    return stores.pixels((24, 300, 310), "uint16")


@pytest.fixture
def by_planes(folder: Path, pixels: np.ndarray) -> Conversion:
    """A stack whose every plane is a part, and a task, of its own."""
    axes = {"axes": "ZYX"}
    tifffile.imwrite(folder / "a.ome.tif", pixels, photometric="minisblack", metadata=axes)
    (made,) = conversions(folder / "a.ome.tif")
    return made.model_copy(update={"part": (1, 300, 310), "group_pixels": 300 * 310})


def test_a_killed_conversion(by_planes: Conversion, pixels: np.ndarray, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPS + SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(by_planes.model_dump_json())
        process.stdin.close()
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    assert not by_planes.store.exists()
    written = [g for g in range(24) if by_planes.is_done(g)]
    assert written == [0, 1, 2, 3, 4]
    with write.working(by_planes):
        read = [write.write_group_of_parts(by_planes, g) for g in range(24)]
        write.publish(by_planes, {})
    assert [g for g, n in enumerate(read) if n == 0] == written
    np.testing.assert_array_equal(level(open_image(by_planes.store)), pixels)
    assert sorted(os.listdir(folder)) == ["a.ome.tif", "a.zarr"]


def test_only_one_makes_a_store(by_planes: Conversion) -> None:
    with (
        write.working(by_planes),
        pytest.raises(OutputError, match=r"another run is making the store .*a\.zarr"),
        write.working(by_planes),
    ):
        pass


def test_a_name_that_is_taken_meanwhile(by_planes: Conversion) -> None:
    by_planes.store.mkdir()
    with pytest.raises(OutputError, match=r"a\.zarr appeared meanwhile"):
        write.convert_whole(by_planes, {})
    assert os.listdir(by_planes.store) == []


def test_no_space(by_planes: Conversion, folder: Path) -> None:
    """A limit of the size of files stands in for a disk that is full."""
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n{SCRIPT}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=by_planes.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cytopave.engine.errors.OutputError")
    assert f"{by_planes.store} cannot be written: " in last
    assert os.listdir(folder) == ["a.ome.tif"]


def test_a_folder_that_cannot_be_written(by_planes: Conversion) -> None:
    there = by_planes.model_copy(update={"store": Path("/proc/nowhere/a.zarr")})
    with pytest.raises(OutputError, match="/proc/nowhere"):
        write.convert_whole(there, {})


@pytest.mark.parametrize(
    "options",
    [{"tile": (512, 512), "compression": "zlib"}, {}, {"rowsperstrip": 8, "compression": "zlib"}],
    ids=["tiles", "one strip", "strips"],
)
def test_memory_does_not_grow_with_the_image(folder: Path, options: dict[str, Any]) -> None:
    """An image of 200 MB, in a process that has 96 MB more than the packages that it imports."""
    rows = np.arange(10000, dtype=np.uint16)
    pixels = np.broadcast_to(rows[:, None], (10000, 10000))
    tifffile.imwrite(folder / "a.tif", pixels, **options)
    (made,) = conversions(folder / "a.tif")
    made = made.model_copy(update={"span": 1024, "part": sized(made, 1024)})
    code = (
        "import resource, threading, zarr, tifffile, numpy, numcodecs.blosc\n"
        "import yaozarrs\n"
        "import cytopave.engine.convert.write\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"{SCRIPT}\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print((after - before) / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=made.model_dump_json(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 96
    image = open_image(made.store)
    assert (np.asarray(image.array[::97, ::89]) == rows[::97, None]).all()
    coarse = means(means(means(np.asarray(image.array[:, :16]))))
    np.testing.assert_array_equal(np.asarray(image.at_level(3).array[:, :2]), coarse)


def sized(made: Conversion, span: int) -> tuple[int, ...]:
    """The part for a shorter unit than an image of this size would get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "SPANS", (span,))
        return sizes.part_shape(made.scene)[1]
