"""Flows that can be called where no Prefect API runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect import Flow, tags
from prefect.context import TagsContext

from cytopave.tasks.runner import embedded_api

if TYPE_CHECKING:
    from collections.abc import Callable


TAG = "cytopave"
"""Tag of every run: automations and filters of the UI know them by it."""


class EmbeddedFlow[**P, R](Flow[P, R]):
    """A flow whose runs are tagged, and for which an API is started where none is set.

    Prefect starts one as well, and gives up after 20 seconds. The first start of all, which makes
    the database, takes longer than that on a busy machine.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow; see `prefect.Flow`."""
        embedded_api()
        with tags(TAG):
            return super().__call__(*args, **kwargs)


def untagged() -> TagsContext:
    """Within this context, tasks get no tags from the flow that runs them.

    Prefect takes a slot for each tag of a task run, and gives it back by a thread that it waits for
    for up to two seconds (3.9): more than many of our tasks take.
    """
    return TagsContext(current_tags=set())


def embedded_flow[**P, R](**options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """The decorator ``prefect.flow(**options)`` for an `EmbeddedFlow`."""
    return lambda function: EmbeddedFlow(function, **options)
