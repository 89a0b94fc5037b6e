"""A time limit for tiles: a function that hangs ends with its process, and the tile is known.

Python cannot stop a thread that is stuck in a library, and cannot even look at the clock while that
library holds the interpreter's lock. So the limit is `faulthandler`'s, whose timer needs neither:
it writes where all threads are, and ends the process. The file that it writes to lies in the run's
scratch folder and begins with the tile's number, so that whoever takes the batch next knows.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEAD = 64  # bytes: the tile's number and its thread, then the trace
_FOLDER = "overtime"


class Overtime:
    """Ends this process when a tile of a batch takes too long; a context manager.

    Batches in several threads of a process have one each.
    """

    def __init__(self, root: Path, seconds: float | None) -> None:
        """Make one.

        Args:
            root: The run's scratch folder.
            seconds: Longest time of one stage of a tile; None for no limit.
        """
        self._seconds = seconds
        self._path = root / _FOLDER / f"{uuid.uuid4().hex}.txt"
        self._file = -1

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.write(self._file, b"-1 0".ljust(_HEAD))  # now, not when the disk is full
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.unlink(missing_ok=True)

    @contextmanager
    def of(self, tile: int, *, computing: bool = False) -> Iterator[None]:
        """Limit the time of the block, which is about a tile; several threads may.

        Args:
            tile: Number of the tile.
            computing: Whether the block calls the segmentation function. While one does, its time
                alone counts: it may keep the interpreter's lock, for which the others wait.
        """
        if self._seconds is None:
            yield
            return
        key = object()
        deadline, thread = time.monotonic() + self._seconds, threading.get_ident()
        with _lock:
            _running[key] = (not computing, deadline, self._file, tile, thread)
        try:
            with _lock:
                _arm()
            yield
        finally:
            with _lock:
                del _running[key]
                _arm()


def overdue(root: Path, tiles: Iterable[int]) -> dict[int, str]:
    """Those of some tiles that were ended for their time since `forget`.

    Args:
        root: The run's scratch folder.
        tiles: Numbers of tiles.

    Returns:
        For each, where it was: the innermost line that was being executed for it, as far as known.
    """
    found: dict[int, str] = {}
    wanted = set(tiles)
    for path in (root / _FOLDER).glob("*.txt"):
        with contextlib.suppress(FileNotFoundError):  # of a batch that ended meanwhile
            content = path.read_bytes()
            trace = content[_HEAD:].decode(errors="replace")
            if not trace:  # the process lives, or died of something else
                continue
            tile, thread = (int(number) for number in content[:_HEAD].split())
            if tile in wanted:
                found[tile] = _where(trace, thread)
    return found


def forget(root: Path) -> None:
    """Give tiles that were ended for their time another chance."""
    shutil.rmtree(root / _FOLDER, ignore_errors=True)


_lock = threading.Lock()
_running: dict[object, tuple[bool, float, int, int, int]] = {}


def _arm() -> None:
    """Set the process's one timer to the tile whose time is up first."""
    faulthandler.cancel_dump_traceback_later()
    if not _running:
        return
    _, deadline, file, tile, thread = min(_running.values())  # what computes comes first
    with contextlib.suppress(OSError):  # a full disk: nobody will know the tile, that is all
        os.pwrite(file, f"{tile} {thread}".encode().ljust(_HEAD), 0)
    left = max(0.001, deadline - time.monotonic())
    faulthandler.dump_traceback_later(left, exit=True, file=file)


def _where(trace: str, thread: int) -> str:
    """The innermost line of a thread in `faulthandler`'s trace of all of them."""
    for stack in re.split(r"\n(?=Thread |Current thread )", trace):
        number = re.match(r"(?:Thread|Current thread) (0x[0-9a-f]+)", stack)
        line = re.search(r'File "(.+)", line (\d+) in (\S+)', stack)
        if number and line and int(number[1], 16) == thread:
            return f"{Path(line[1]).name}, line {line[2]}, in {line[3]}"
    return "an unknown place"
