"""The time limit of tiles, in processes of their own, which it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cytopave.engine import overtime
from cytopave.engine.overtime import Overtime, forget, overdue

if TYPE_CHECKING:
    from pathlib import Path

HANGS = """
import sys, threading, time, ctypes
from pathlib import Path
from cytopave.engine.overtime import Overtime
def ends(overtime):
    with overtime.of(3):
        time.sleep(0.01)
with Overtime(Path(sys.argv[1]), 60) as slow, Overtime(Path(sys.argv[1]), 0.5) as quick:
    ends(slow)
    ends(quick)
    with slow.of(1):
        other = quick.of(7)  # of another thread
        thread = threading.Thread(target=other.__enter__)
        thread.start(); thread.join()
        {what}
"""


@pytest.mark.parametrize(
    "what", ["time.sleep(3600)", "ctypes.PyDLL(None).sleep(3600)", "while True: pass"]
)
def test_the_process_ends_and_the_tile_is_known(tmp_path: Path, what: str) -> None:
    """Whatever hangs, and whichever of several tiles it is."""
    script = HANGS.replace("{what}", what)
    since = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False, capture_output=True
    )
    assert done.returncode == 1
    assert time.monotonic() - since >= 0.5
    assert set(overdue(tmp_path, range(10))) == {7}
    assert overdue(tmp_path, [1, 3]) == {}
    forget(tmp_path)
    assert overdue(tmp_path, range(10)) == {}


def test_a_process_that_died_of_something_else(tmp_path: Path) -> None:
    script = HANGS.replace("{what}", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -9
    assert len([*tmp_path.glob("overtime/*")]) == 2
    assert overdue(tmp_path, range(10)) == {}


def test_tiles_in_time_leave_nothing(tmp_path: Path) -> None:
    with Overtime(tmp_path, 60) as overtime, overtime.of(1), overtime.of(2):
        assert overdue(tmp_path, [1, 2]) == {}
    assert not [*tmp_path.glob("overtime/*")]
    with Overtime(tmp_path / "unlimited", None) as overtime, overtime.of(1):
        pass
    assert not (tmp_path / "unlimited").exists()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """As on a full disk: else the next tiles would write into files that are not theirs."""
    with Overtime(tmp_path, 60) as limit:
        file, limit._file = limit._file, os.open(os.devnull, os.O_RDONLY)
        with limit.of(3):
            pass
        os.close(limit._file)
        limit._file = file
    assert not overtime._running


def test_the_place_is_of_the_tile_s_own_thread(tmp_path: Path) -> None:
    """Others stand somewhere too: the first to begin, and the last."""
    script = """
import sys, threading, time
from pathlib import Path
from cytopave.engine.overtime import Overtime
def before(overtime, began):
    with overtime.of(1):
        began.set()
        time.sleep(3600)
def hang(overtime, began):
    with overtime.of(2, computing=True):
        began.set()
        time.sleep(3600)
def after(overtime, began):
    with overtime.of(3):
        began.set()
        time.sleep(3600)
with Overtime(Path(sys.argv[1]), 0.5) as limit:
    for do in (before, hang, after):
        began = threading.Event()
        threading.Thread(target=do, args=(limit, began), daemon=True).start()
        began.wait()
    time.sleep(3600)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)
    assert overdue(tmp_path, range(10)) == {2: "<string>, line 12, in hang"}
