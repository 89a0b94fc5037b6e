"""Dask as runs want it in this process, while there are any."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import dask

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGGING = "{'distributed': 'warning', 'distributed.worker.state_machine': 'error'}"

_DASK = {
    # A worker may die of what is beside it (the kernel's memory killer, an operator), so its task
    # gets a second worker; a task that kills that one too is the cause, and fails.
    "distributed.scheduler.allowed-failures": 1,
    # A worker that is not back by then is given up for good, and a run without workers would wait
    # for ever. In Dask's 15 s a busy machine does not even import what a worker needs.
    "distributed.deploy.lost-worker-timeout": "1 hour",
    # Dask's own profiler looks at every thread a hundred times a second.
    "distributed.worker.profile.enabled": False,
    # The state machine warns of every task that an interrupted run cancels.
    "distributed.nanny.pre-spawn-environ.DASK_LOGGING": _LOGGING,
    "distributed.worker.preload": ["cytopave.tasks.worker_logs"],
}

_lock = threading.Lock()
_runs = 0
_undo = ExitStack()


@contextmanager
def dask_prepared() -> Iterator[None]:
    """Dask's settings and messages, from the first of the runs at once to the end of the last.

    They are the process's: a run that put back what it found would put back another run's.
    """
    global _runs
    with _lock:
        if not _runs:
            _undo.enter_context(_quiet())
            _undo.enter_context(dask.config.set(_DASK))
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                _undo.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the scheduler's routine messages, and its farewells, off the flow's console."""
    logger, nanny = logging.getLogger("distributed"), logging.getLogger("distributed.nanny")
    before = logger.level
    logger.setLevel(logging.WARNING)
    nanny.addFilter(_not_a_slow_end)
    try:
        yield
    finally:
        logger.setLevel(before)
        nanny.removeFilter(_not_a_slow_end)
        # Dask leaves behind in this process what it set for the workers' start.
        if os.environ.get("DASK_LOGGING") == _LOGGING:
            del os.environ["DASK_LOGGING"]


def _not_a_slow_end(record: logging.LogRecord) -> bool:
    """At the end of a good run, a worker that takes seconds to end is ended: no news."""
    return "still alive after" not in record.getMessage()
