"""Wall time of a run's stages."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cytopave.engine.report import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Clock:
    """Wall time of each stage, in the order in which they end."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[..., None]]:
        """Measure a block; gives a function that is told the stage's other facts."""
        facts: dict[str, Any] = {}
        start = time.perf_counter()
        yield facts.update
        seconds = time.perf_counter() - start
        self.stages = [*self.stages, Stage(name=name, seconds=seconds, **facts)]
