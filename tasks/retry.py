"""Retries for the one failure that passes by itself: a shared GPU that was full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas import State, TaskRun

    from cytopave.engine.settings import Settings

JITTER = 0.3
"""Waits vary by up to this share, so that workers that failed together do not return together."""


def is_retryable(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's ``retry_condition_fn``: only the GPU's out-of-memory error is tried again."""
    return isinstance(state.data, OutOfMemoryError)


def backoff_delays(settings: Settings) -> list[float]:
    """Seconds before each further attempt: each wait is twice the one before."""
    return [settings.backoff_seconds * 2.0**attempt for attempt in range(settings.retries)]


def retrying[**P, R](task: Task[P, R], settings: Settings | None = None) -> Task[P, R]:
    """The task, tried again with backoff when the GPU's memory did not suffice.

    Prefect waits on the worker, with the exception in hand: the task must hold nothing on the GPU
    by then, which ``engine.gpu.oom.attempt`` sees to.

    Args:
        task: What to run.
        settings: Number and length of the waits; None reads the environment.
    """
    settings = settings or load_settings()
    return task.with_options(
        retries=settings.retries,
        retry_delay_seconds=backoff_delays(settings),
        retry_jitter_factor=JITTER,
        retry_condition_fn=is_retryable,
    )
