"""What Dask loads in each worker process that cytopave starts: quieter farewells."""

from __future__ import annotations

import logging


def dask_setup(_worker: object) -> None:
    """Called by Dask before the worker starts."""
    logging.getLogger("distributed.worker").addFilter(in_one_line)


def in_one_line(record: logging.LogRecord) -> bool:
    """Drop the traceback of a heartbeat that no scheduler answered; the line itself stays.

    When a run is interrupted the scheduler may end before a worker does, and the traceback would
    be the last thing that the user sees.
    """
    if "during heartbeat" in record.getMessage():
        record.exc_info = None
    return True
