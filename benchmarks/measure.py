"""What a command costs, with every process that it starts: measured by the kernel, not sampled.

The measuring process is a *child subreaper* (Linux): a descendant whose parent is gone becomes its
child. It waits for all of them, so that the kernel's own accounts of finished processes reach it:

* CPU seconds and the peak resident memory of the largest process come with each ``wait4``, which
  reports a process together with the descendants that it had waited for;
* bytes read and written (``rchar`` and ``wchar`` of ``/proc/self/io``: what ``read`` and ``write``
  calls moved, page cache or disk alike) are added to the parent's when it waits for a child.

It runs in a process of its own that imports nothing else (``python measure.py COMMAND...``), since
a child starts with the resident memory of its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Usage:
    """Resources of a command and all its descendants.

    Attributes:
        cpu: User and system seconds, summed over all processes.
        wall: Seconds until the last of them had ended.
        peak_mb: Peak resident memory of the largest single process, 10^6 bytes.
        read_mb: Bytes moved by read calls of all processes (files, pipes, imports), 10^6.
        written_mb: Bytes moved by write calls of all processes, 10^6.
        processes: Number of processes that the measuring process waited for itself.
        output: What the command printed on stdout.
    """

    cpu: float
    wall: float
    peak_mb: float
    read_mb: float
    written_mb: float
    processes: int
    output: str


def measure(command: list[str], *, env: dict[str, str] | None = None) -> Usage:
    """Run a command in a measuring process of its own.

    Raises:
        RuntimeError: The command failed; the message holds the end of what it printed.
    """
    here = [sys.executable, "-S", "-E", __file__, *command]
    done = subprocess.run(here, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        said = done.stdout[-2000:] + done.stderr[-4000:]
        raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
    output, _, usage = done.stdout.rstrip("\n").rpartition("\n")
    return Usage(**json.loads(usage), output=output)


def _supervise(command: list[str]) -> int:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this kernel has no child subreaper: run the benchmark on Linux")
    start = time.perf_counter()
    before = _moved()
    child = subprocess.Popen(command)
    cpu, peak, processes, status = 0.0, 0, 0, 0
    while True:
        try:
            pid, code, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu += used.ru_utime + used.ru_stime
        peak = max(peak, used.ru_maxrss)
        processes += 1
        if pid == child.pid:
            status = child.returncode = os.waitstatus_to_exitcode(code)
    read, written = (a - b for a, b in zip(_moved(), before, strict=True))
    usage = {
        "cpu": cpu,
        "wall": time.perf_counter() - start,
        "peak_mb": peak * 1024 / 1e6,
        "read_mb": read / 1e6,
        "written_mb": written / 1e6,
        "processes": processes,
    }
    print(f"\n{json.dumps(usage)}", flush=True)
    return status


def _moved() -> tuple[int, int]:
    with open("/proc/self/io") as file:
        values = dict(line.split(": ") for line in file.read().splitlines())
    return int(values["rchar"]), int(values["wchar"])


def as_json(usage: Usage) -> str:
    """One line, for files of results."""
    return json.dumps(asdict(usage))


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1:]))
