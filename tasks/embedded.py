"""Flows that can be called where no Prefect API runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect import Flow

from cytopave.tasks.runner import embedded_api

if TYPE_CHECKING:
    from collections.abc import Callable


class EmbeddedFlow[**P, R](Flow[P, R]):
    """A flow that, called with no API set, has one started and waits until it answers.

    Prefect does the same and gives up after 20 seconds. The first start of all, which makes the
    database, takes longer than that on a busy machine.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow; see `prefect.Flow`."""
        embedded_api()
        return super().__call__(*args, **kwargs)


def embedded_flow[**P, R](**options: Any) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """The decorator ``prefect.flow(**options)`` for an `EmbeddedFlow`."""
    return lambda function: EmbeddedFlow(function, **options)
