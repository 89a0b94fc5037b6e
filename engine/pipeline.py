"""Three stages at once: the next items are read and the last ones finished while one is worked on.

The work itself stays in the caller's thread, one item after the other, in order: what computes on
a device, or is a user's function, need not be safe to use from several threads.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator


class Outcome[Item, Result](NamedTuple):
    """How one item ended: with a result, or with the exception of the stage that failed."""

    item: Item
    result: Result | None
    error: Exception | None


@dataclass(frozen=True)
class Pipeline[Item, Result]:
    """Stages of work on items, and how many items may be in it at once.

    Attributes:
        read: ``read(item)``, ahead of the work, in a thread of its own, one item at a time.
        begin: ``begin(item, read)``: the work, in the caller's thread.
        finish: ``finish(item, worked)``, after the work, in one of the finishing threads.
        settle: ``settle(item, begun)``: the rest of the work, in the caller's thread, once the work
            on the *next* item has begun: for a device that goes on with that one while the host
            sees to this one. None: there is no rest, and what `begin` returns is finished at once.
        bound: Most items that are taken and have not ended; with one, nothing overlaps.
        finishers: Number of finishing threads.
    """

    read: Callable[[Item], Any]
    begin: Callable[[Item, Any], Any]
    finish: Callable[[Item, Any], Result]
    settle: Callable[[Item, Any], Any] | None = None
    bound: int = 4
    finishers: int = 2

    def __post_init__(self) -> None:
        """Refuse what could never run.

        Raises:
            ValueError: The bound or the number of finishing threads is below one.
        """
        if min(self.bound, self.finishers) < 1:
            raise ValueError("a pipeline needs room for one item and one finishing thread")

    def run(self, items: Iterable[Item]) -> Generator[Outcome[Item, Result]]:
        """Take every item through all stages.

        A stage that raises ends its item; the others go on. What is no `Exception` (an interrupt)
        ends all, as does a consumer that stops: nothing more is read or worked on then, and what
        has come to the finishing threads is finished.

        Yields:
            One outcome an item, in the order in which they end.
        """
        with (
            ThreadPoolExecutor(self.finishers, "finish") as finishers,
            ThreadPoolExecutor(1, "read") as reader,
        ):
            try:
                yield from self._run(iter(items), reader, finishers)
            finally:
                reader.shutdown(wait=False, cancel_futures=True)

    def _run(
        self, waiting: Iterator[Item], reader: ThreadPoolExecutor, finishers: ThreadPoolExecutor
    ) -> Generator[Outcome[Item, Result]]:
        reading: deque[Future[Outcome[Item, Any]]] = deque()
        begun: list[Outcome[Item, Any]] = []  # one at most, which is not settled yet
        finishing: set[Future[Outcome[Item, Result]]] = set()
        while True:
            while len(reading) + len(begun) + len(finishing) < self.bound and (
                (taken := next(waiting, _NONE)) is not _NONE
            ):
                reading.append(reader.submit(_tried, self.read, taken))
            last, begun = begun, []
            if reading:
                begun = [_then(reading.popleft().result(), self.begin)]
            elif last:
                pass
            elif finishing:
                wait(finishing, return_when=FIRST_COMPLETED)
            else:
                return
            if self.settle is None:
                last, begun = begun, []
            elif last:
                last = [_then(last.pop(), self.settle)]
            yield from _failed(begun)
            yield from _failed(last)
            if last:
                finishing.add(finishers.submit(_then, last.pop(), self.finish))
            yield from _ended(finishing)


_NONE: Any = object()


def _tried[Item, Result](
    function: Callable[..., Result], item: Item, *values: Any
) -> Outcome[Item, Result]:
    try:
        return Outcome(item, function(item, *values), None)
    except Exception as error:  # noqa: BLE001  whatever it was ends this item, and no other
        return Outcome(item, None, error)


def _then[Item, Result](
    before: Outcome[Item, Any], function: Callable[[Item, Any], Result]
) -> Outcome[Item, Result]:
    """The outcome of the next stage; no further one is tried after a failure."""
    return before if before.error else _tried(function, before.item, before.result)


def _failed[Item](outcomes: list[Outcome[Item, Any]]) -> Iterator[Outcome[Item, Any]]:
    """Take the failures out of a list."""
    while outcomes and outcomes[0].error:
        yield outcomes.pop()


def _ended[Item, Result](
    finishing: set[Future[Outcome[Item, Result]]],
) -> Iterator[Outcome[Item, Result]]:
    for future in [f for f in finishing if f.done()]:
        finishing.remove(future)
        yield future.result()
