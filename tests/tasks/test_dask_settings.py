"""What runs change of Dask in this process, and put back."""

from __future__ import annotations

import logging
import os
from typing import Any

import dask
import distributed  # noqa: F401 - its settings

from cytopave.tasks.dask_settings import dask_prepared


def seen() -> tuple[Any, ...]:
    return (
        dask.config.get("distributed.scheduler.allowed-failures"),
        dask.config.get("distributed.worker.preload"),
        logging.getLogger("distributed").level,
        os.environ.get("DASK_LOGGING"),
    )


def test_the_last_of_the_runs_at_once_puts_everything_back() -> None:
    before = seen()
    one, other = dask_prepared(), dask_prepared()
    with one:
        during = seen()
        assert during[:3] == (1, ["cytopave.tasks.worker_logs"], logging.WARNING)
        assert during != before
        other.__enter__()
        # As Dask does when it starts a worker.
        environ = dask.config.get("distributed.nanny.pre-spawn-environ")
        os.environ["DASK_LOGGING"] = environ["DASK_LOGGING"]
    assert seen()[:3] == during[:3]
    other.__exit__(None, None, None)
    assert seen() == before
    with dask_prepared():
        assert seen() == during
    assert seen() == before


def test_what_the_user_says_of_messages_stays() -> None:
    os.environ["DASK_LOGGING"] = "{'distributed': 'debug'}"
    try:
        with dask_prepared():
            pass
        assert os.environ["DASK_LOGGING"] == "{'distributed': 'debug'}"
    finally:
        del os.environ["DASK_LOGGING"]
