"""Child processes that end with this one, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import subprocess

_guarded: set[int] = set()


def end_with_us(pid: int) -> None:
    """Have a child process ended when this process is gone.

    What this process would do at its exit it does only in an orderly one: a temporary server would
    stay for ever after a kill, and also after a plain termination signal. A shell in a session of
    its own waits for the end of a pipe that only this process holds open, and then ends the child.

    Args:
        pid: The child; named again, it is guarded once.
    """
    if pid in _guarded:
        return
    _guarded.add(pid)
    shell = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _ || kill "$1"', "guard", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_dismiss, shell)


def _dismiss(shell: subprocess.Popen[bytes]) -> None:
    """In an orderly exit the child is ended by its owner; its number may be another's soon."""
    with contextlib.suppress(BrokenPipeError):
        shell.communicate(b"\n")
