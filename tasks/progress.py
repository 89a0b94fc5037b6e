"""Progress of long work: a bar on a terminal, an artifact in Prefect's UI."""

from __future__ import annotations

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


@contextmanager
def progress(description: str, total: int, *, key: str) -> Iterator[Callable[[int], None]]:
    """Show how far some work is; gives a function that is told of each further part.

    Args:
        description: What the work is, a few words.
        total: All parts.
        key: Key of the artifact: lower-case letters, digits and dashes.
    """
    artifact = create_progress_artifact(progress=0.0, key=key, description=description)
    assert isinstance(artifact, UUID)  # a coroutine only in asynchronous code
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    console = Console(stderr=True)
    done, shown = 0, time.monotonic()
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        row = bar.add_task(description, total=total)

        def advance(parts: int) -> None:
            nonlocal done, shown
            done += parts
            bar.advance(row, parts)
            now = time.monotonic()
            if done >= total or now - shown >= _SECONDS_BETWEEN_UPDATES:
                shown = now
                update_progress_artifact(artifact_id=artifact, progress=100.0 * done / total)

        yield advance
