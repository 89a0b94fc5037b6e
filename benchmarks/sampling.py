"""Looking at something again and again, in a thread of its own, while something else runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampler(ABC):
    """Calls `look` every ``period`` seconds while its block runs."""

    period = 0.2

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @abstractmethod
    def look(self) -> None:
        """Take one sample."""

    def _sample(self) -> None:
        while not self._over.wait(self.period):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
