"""Run `segment_image` in a process of its own: ``python run_flow.py '{"image": ...}'``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable


class Process:
    """The flow's process and all that it starts: a process group."""

    def __init__(self, cwd: Path, parameters: dict[str, Any], **environ: str) -> None:
        self.log = cwd / "log"
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, __file__, json.dumps(parameters)],
                cwd=cwd,
                env={**os.environ, **environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_when(
        self, condition: Callable[[], bool], *, group: bool = True, timeout: float = 240
    ) -> None:
        """Kill the whole group, or the flow's process alone, as soon as something is so."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self._popen.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.002)
        (os.killpg if group else os.kill)(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def wait(self, *, timeout: float = 240) -> None:
        """Wait for success."""
        assert self._popen.wait(timeout) == 0, self.log.read_text()

    def left(self, *, within: float = 60) -> list[str]:
        """Command lines of the processes that are still there after a while."""
        deadline = time.monotonic() + within
        while (found := self._members()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _members(self) -> list[str]:
        found = []
        for process in psutil.process_iter(["pid", "status", "cmdline"]):
            try:
                group = os.getpgid(process.pid)
            except ProcessLookupError:
                continue
            if group == self._popen.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.info["cmdline"] or []))
        return found


def main() -> None:
    from cytopave.flows import segment_image

    segment_image(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
