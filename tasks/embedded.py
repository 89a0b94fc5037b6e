"""Flows that can be called where no Prefect API runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from prefect import Flow, tags
from prefect.context import TagsContext
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    temporary_settings,
)

from cytopave.blocks.cluster import names_saved, resolve_cluster
from cytopave.blocks.results import check_results
from cytopave.blocks.saved import may_be_saved
from cytopave.engine.settings import load_settings
from cytopave.tasks.runner import embedded_api, make_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


TAG = "cytopave"
"""Tag of every run: automations and filters of the UI know them by it."""


class EmbeddedFlow[**P, R](Flow[P, R]):
    """A flow whose runs are tagged, and for which an API is started where none is set.

    Prefect starts one as well, and gives up after 20 seconds. The first start of all, which makes
    the database, takes longer than that on a busy machine.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow; see `prefect.Flow`.

        Raises:
            UserError: A name of the request or of the settings is known to nobody: this is said
                before an API is waited for.
        """
        refuse_unknown(kwargs.get("cluster"))
        embedded_api()
        with tags(TAG), _no_heartbeats():
            return super().__call__(*args, **kwargs)


def _no_heartbeats() -> AbstractContextManager[Any]:
    """Without an API that is set: the temporary one ends with the process, and misses nobody.

    The thread that sends them sleeps in whole seconds, and Prefect waits for it at the end (3.9).
    """
    if PREFECT_API_URL.value():
        return nullcontext()
    return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})


def refuse_unknown(cluster: object) -> None:
    """Refuse what names nothing, as far as that is certain without an API.

    Args:
        cluster: The parameter of a flow, if it has one.

    Raises:
        UserError: There is no such cluster, or no such storage for results.
    """
    api = bool(PREFECT_API_URL.value())
    check_results(load_settings().results, api=api)
    if isinstance(cluster, str) and (
        api or not names_saved(cluster) or not may_be_saved(cluster.strip())
    ):
        resolve_cluster(cluster)


def untagged() -> TagsContext:
    """Within this context, tasks get no tags from the flow that runs them.

    Prefect takes a slot for each tag of a task run, and gives it back by a thread that it waits for
    for up to two seconds (3.9): more than many of our tasks take.
    """
    return TagsContext(current_tags=set())


def embedded_flow[**P, R](**options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """The decorator ``prefect.flow(**options)`` for an `EmbeddedFlow`.

    Unless the options say otherwise, its tasks run where its parameters say, and Prefect does not
    keep its result: what counts is on disk, and tasks keep theirs.
    """
    usual: dict[str, Any] = {"task_runner": make_runner(), "persist_result": False}
    return lambda function: EmbeddedFlow(function, **usual | options)
