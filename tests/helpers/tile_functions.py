"""Functions that segment tiles in worker processes, leave a trace, and fail as they are told to.

A tile is known by a checksum of its pixels. What a call shall do instead of its work stands in a
note, a file named by the tile: so a test can change it without changing the function, its
arguments or its source.
"""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from runs import components


def key_of(pixels: np.ndarray) -> str:
    """Name of a tile, by its pixels."""
    return f"{zlib.crc32(np.ascontiguousarray(pixels)):08x}"


def recorded(tile: np.ndarray, *, folder: str, seconds: float = 0.0, above: float = 0) -> object:
    """Connected components of what is brighter than ``above``; one line a call."""
    key = key_of(tile)
    line = f"{key} {os.getpid()} {time.time()}\n".encode()
    handle = os.open(f"{folder}/calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line)
    os.close(handle)
    time.sleep(seconds)
    while (note := note_of(key, folder)) == "wait":
        time.sleep(0.01)
    what, _, times = note.partition(" ")
    if what and calls(folder)[key] <= int(times or 1_000_000):
        return misbehave(what, tile, Path(folder))
    return components(tile > above)


def note_of(key: str, folder: Path | str) -> str:
    """What a tile is told to do; a test may take the note away at any moment."""
    try:
        return Path(folder, key).read_text()
    except FileNotFoundError:
        return ""


def calls(folder: Path | str) -> Counter[str]:
    """How often each tile was begun."""
    path = Path(folder, "calls")
    return (
        Counter(line.split()[0] for line in path.read_text().splitlines())
        if path.exists()
        else Counter()
    )


def misbehave(what: str, tile: np.ndarray, folder: Path) -> object:
    """Do what a note says."""
    labels = components(tile > 0)
    if what in _WRONG_RESULTS:
        return _WRONG_RESULTS[what](labels)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        hang(folder / "before")
    if what == "torch":
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if what == "cupy":
        raise _CUPY("Out of memory allocating 2,147,483,648 bytes")
    raise ValueError("these pixels are not to my taste")


def hang(before: Path) -> None:
    """A library that never returns, and keeps the interpreter's lock meanwhile.

    What ``before`` names, if there is such a file, is waited for: the tile before may still be
    written when this one is begun, and could not be any more.
    """
    while before.exists() and not glob.glob(before.read_text()):
        time.sleep(0.01)
    ctypes.PyDLL(None).sleep(3600)


_CUPY: Any = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})

_WRONG_RESULTS: dict[str, Any] = {
    "floats": lambda labels: labels.astype(float),
    "negatives": lambda labels: -labels,
    "shape": lambda labels: labels[:-1],
    "too-large": lambda labels: labels.astype(np.uint64) + np.uint64(2**63),
    "nothing": lambda _: None,
}


def haematoxylin(tile: np.ndarray, *, above: float) -> np.ndarray:
    """Nuclei of stained tissue: components of pixels with much of the blue dye."""
    from skimage.color import rgb2hed

    return components(rgb2hed(np.moveaxis(tile, 0, -1))[..., 0] > above)


def second_of_two(tile: np.ndarray) -> np.ndarray:
    """Components of the second of two channels; what was given is overwritten."""
    first, second = tile
    labels = components(second > 20)
    tile[:] = first.max()
    return labels


def with_a_margin(tile: np.ndarray, *, margin: int) -> np.ndarray:
    """Components that lie at least a margin away from the edges of what is seen."""
    labels = components(tile > 100)
    inner = np.zeros(tile.shape, bool)
    inner[tuple(slice(margin, -margin) for _ in tile.shape)] = True
    near = np.unique(labels[~inner])
    return np.where(np.isin(labels, near), 0, labels)


def dependent_on_the_window(tile: np.ndarray) -> np.ndarray:
    """Every object, moved by a number of pixels that depends on all that is seen."""
    by = 2 + zlib.crc32(np.ascontiguousarray(tile)) % 7
    return np.roll(components(tile > 100), by, axis=-1)


def of_little_memory(tile: np.ndarray, *, pixels: int) -> np.ndarray:
    """As `second_of_two`, on a device that has room for windows of so many pixels."""
    if tile[0].size > pixels:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return second_of_two(tile)
