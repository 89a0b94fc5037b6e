"""Submitting many tasks, a few at a time, and outliving those that fail."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from distributed import KilledWorker
from distributed.client import ClosedClientError, FutureCancelledError
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.futures import PrefectWrappedFuture, as_completed
from prefect.states import Crashed

from cytopave.engine.errors import ClusterError
from cytopave.tasks.runner import slots

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from prefect import Task
    from prefect.client.schemas import State
    from prefect.futures import PrefectFuture

_log = logging.getLogger(__name__)


def run_all[Item, Result](
    task: Task[..., Result],
    items: Iterable[Item],
    *,
    advance: Callable[[int], None] = lambda _: None,
    **parameters: Any,
) -> list[Result]:
    """Run ``task(item, **parameters)`` for every item on all workers of the running flow.

    Args:
        task: The task.
        items: What to run it for.
        advance: Is told of each item that is done (`cytopave.tasks.progress.progress`).
        parameters: The same for all of them.

    Returns:
        The results, in the order in which they came.

    Raises:
        Exception: What ended the first task that failed; the others are given up.
    """
    results: list[Result] = []
    with closing(run_window(lambda _: task, items, window=slots(), **parameters)) as outcomes:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            results.append(cast("Result", outcome.result))
            advance(1)
    return results


class Outcome[Item, Result](NamedTuple):
    """How the task of one item ended: with a result, or with the exception that ended it."""

    item: Item
    result: Result | None
    error: Exception | None


def run_window[Item, Result](
    task_of: Callable[[Item], Task[..., Result]],
    items: Iterable[Item],
    *,
    window: int,
    **parameters: Any,
) -> Generator[Outcome[Item, Result]]:
    """Run ``task_of(item)(item, **parameters)`` for every item, at most ``window`` at once.

    Items are taken as places fall free, and what a worker holds for a task is let go as soon as its
    result is here: neither memory nor the work lost with a worker grows with the number of items.
    Whoever may stop before the end closes the generator (`contextlib.closing`), which gives up what
    runs: an exception on its way up would keep it alive.

    Choose the window no larger than the number of threads (``runner.slots()``). A task that waits
    on a worker behind one that kills it would be held guilty of that death as well.

    Args:
        task_of: Gives the task for an item, whose first argument is the item.
        items: What to run it for.
        window: Most tasks at once.
        parameters: The same for all of them.

    Yields:
        One outcome an item, in the order in which they end. A task that fails, or that takes its
        worker down, is an outcome too; nothing is raised for it.

    Raises:
        ClusterError: The scheduler is gone, and with it every result to come.
    """
    waiting = iter(items)
    running: dict[PrefectFuture[Result], Item] = {}
    try:
        while True:
            while len(running) < window and (taken := next(waiting, _NONE)) is not _NONE:
                running[_submit(task_of(taken), taken, parameters)] = taken
            if not running:
                return
            future = next(as_completed(list(running)))
            yield _outcome(running.pop(future), future)
    finally:
        for future in running:  # the consumer stopped early
            _dask(future).cancel()


_NONE: Any = object()
_SCHEDULER_LOST = "scheduler-connection-lost"
_LOST = (
    "the connection to the cluster's scheduler was lost: the same command, on a cluster that runs, "
    "continues where this run ended"
)


def _submit[Result](
    task: Task[..., Result], item: Any, parameters: dict[str, Any]
) -> PrefectFuture[Result]:
    try:
        future: PrefectFuture[Result] = task.submit(item, **parameters)
    except ClosedClientError as error:
        raise ClusterError(_LOST) from error
    return future


def _outcome[Item, Result](item: Item, future: PrefectFuture[Result]) -> Outcome[Item, Result]:
    try:
        return Outcome(item, future.result(), None)
    except KilledWorker as error:
        _record_crash(future, error)
        return Outcome(item, None, error)
    except FutureCancelledError as error:
        if error.reason == _SCHEDULER_LOST:
            raise ClusterError(_LOST) from error
        return Outcome(item, None, error)
    except Exception as error:  # noqa: BLE001  whatever it was is this item's outcome
        return Outcome(item, None, error)
    finally:
        _dask(future).release()


def _record_crash(future: PrefectFuture[Any], error: KilledWorker) -> None:
    """Tell Prefect: a dead worker could not, and the run would stay 'Running' for ever.

    A worker may die before it reported its task at all: then there is nothing to correct.
    """
    state: State[Any] = Crashed(
        message=f"Its worker died, {error.allowed_failures + 1} times in a row."
    )
    try:
        with get_client(sync_client=True) as client:
            client.set_task_run_state(future.task_run_id, state, force=True)
    except (ObjectNotFound, PrefectHTTPStatusError):
        _log.warning("Prefect does not know task run %s, whose worker died", future.task_run_id)


def _dask(future: PrefectFuture[Any]) -> Any:
    assert isinstance(future, PrefectWrappedFuture)
    return future.wrapped_future
