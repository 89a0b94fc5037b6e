"""What a process keeps because it is expensive to build: the last of its kind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Kept[T]:
    """Builds a value once per key and keeps the last one only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[Hashable, T] | None = None

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """The value of a key; built if another one, or none, is kept."""
        with self._lock:
            if self._held is None or self._held[0] != key:
                self._held = None  # before the next one is built beside it
                self._held = (key, build())
            return self._held[1]

    def drop(self) -> None:
        """Keep nothing; the next `get` builds anew."""
        with self._lock:
            self._held = None
