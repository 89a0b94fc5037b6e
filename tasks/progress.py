"""Progress of long work: a bar on a terminal, else lines in the log; an artifact in the UI."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# An update is a request to the API; more often than this nobody looks.
_SECONDS_BETWEEN_UPDATES = 2.0
_SECONDS_BETWEEN_LINES = 10.0
_STEPS = 20  # lines for long work, at most

_log = logging.getLogger(__name__)


@contextmanager
def progress(description: str, total: int, *, key: str) -> Iterator[Callable[[int], None]]:
    """Show how far some work is; gives a function that is told of each further part.

    Args:
        description: What the work is, a few words.
        total: All parts.
        key: Key of the artifact: lower-case letters, digits and dashes.
    """
    artifact = create_progress_artifact(
        progress=0.0, key=key, description=f"{description}: {total} in all"
    )
    assert isinstance(artifact, UUID)  # a coroutine only in asynchronous code
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    terminal = sys.stderr.isatty()
    done, shown = 0, time.monotonic()
    lines = _Lines(description, total) if not terminal else None
    with Progress(*columns, console=Console(stderr=True), disable=not terminal) as bar:
        row = bar.add_task(description, total=total)

        def advance(parts: int) -> None:
            nonlocal done, shown
            done += parts
            bar.advance(row, parts)
            if lines:
                lines.show(done)
            now = time.monotonic()
            if done >= total or now - shown >= _SECONDS_BETWEEN_UPDATES:
                shown = now
                update_progress_artifact(artifact_id=artifact, progress=100.0 * done / total)

        yield advance


class _Lines:
    """A few lines in the log: one at the end, and before it one now and then."""

    def __init__(self, description: str, total: int) -> None:
        self._description, self._total = description, total
        self._done, self._at = 0, time.monotonic()

    def show(self, done: int) -> None:
        now = time.monotonic()
        due = now - self._at >= _SECONDS_BETWEEN_LINES
        if done < self._total and not (due and (done - self._done) * _STEPS >= self._total):
            return
        _log.info("%s: %d of %d", self._description, done, self._total)
        self._done, self._at = done, now
