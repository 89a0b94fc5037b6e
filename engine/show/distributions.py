"""How the values of a table's columns are distributed, a chunk of rows at a time.

Two passes over the table, and memory that does not depend on its length. Order statistics are
those of the values as float32: they come from counting the upper and then the lower sixteen bits of
numbers, in an order that is the numbers' own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.show.numbers import round_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

QUANTILES = (0.05, 0.5, 0.95)
"""What `Distribution.quantiles` are: nine of ten objects lie between the outer two."""

BARS = 40
"""Bars of a histogram, about."""

_TAIL = 0.005  # of the objects at either end, which need not have bars of their own
_HALF = 1 << 16


@dataclass(frozen=True)
class Distribution:
    """The values of a column.

    Attributes:
        column: Its name.
        counts: Objects of each bar, ``(bars,)`` int64. The outer bars hold those beyond them too.
        edges: Where bars begin and end, ``(bars + 1,)``: round numbers.
        low: Least value.
        high: Greatest one.
        quantiles: The least values that `QUANTILES` of the objects do not exceed.
        n_beyond: Objects that lie beyond the outer edges.
        n_missing: Objects whose value is not finite; they are in none of the bars.
    """

    column: str
    counts: np.ndarray
    edges: np.ndarray
    low: float
    high: float
    quantiles: tuple[float, ...]
    n_beyond: int
    n_missing: int

    @property
    def n(self) -> int:
        """Objects in all bars."""
        return int(self.counts.sum())


type Chunks = Callable[[], Iterable[Mapping[str, np.ndarray]]]
"""Gives all rows of some columns, a chunk at a time, from the first on whenever it is called."""


def distributions(chunks: Chunks, columns: Sequence[str]) -> dict[str, Distribution]:
    """The distribution of each column that has any finite value.

    Args:
        chunks: The table.
        columns: Names of columns of numbers.
    """
    sketches = {name: _Sketch() for name in columns}
    for chunk in chunks():
        for name, sketch in sketches.items():
            sketch.look(np.asarray(chunk[name], np.float64))
    found = {name: s for name, s in sketches.items() if s.prepare()}
    for chunk in chunks():
        for name, sketch in found.items():
            sketch.count(np.asarray(chunk[name], np.float64))
    return {name: sketch.result(name) for name, sketch in found.items()}


class _Sketch:
    """One column: `look` at all values, `prepare`, then `count` all values again."""

    def __init__(self) -> None:
        self.n = self.n_missing = self.n_beyond = 0
        self.low, self.high = math.inf, -math.inf
        self.upper = np.zeros(_HALF, np.int64)

    def look(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)]
        self.n_missing += len(values) - len(finite)
        if len(finite):
            self.n += len(finite)
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))
            self.upper += np.bincount(_keys(finite) >> 16, minlength=_HALF)

    def prepare(self) -> bool:
        """Decide on the bars; False if there is nothing to count."""
        if not self.n:
            return False
        self._below = np.cumsum(self.upper)
        self._ranks = [max(0, math.ceil(q * self.n) - 1) for q in QUANTILES]
        places = [self._place(rank) for rank in self._ranks]
        self._lower = {place: np.zeros(_HALF, np.int64) for place in places}
        self.edges = self._bars()
        self.counts = np.zeros(len(self.edges) - 1, np.int64)
        return True

    def count(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)]
        first, last = self.edges[0], self.edges[-1]
        self.n_beyond += int(((finite < first) | (finite > last)).sum())
        self.counts += np.histogram(finite.clip(first, last), self.edges)[0]
        keys = _keys(finite)
        for place, lower in self._lower.items():
            lower += np.bincount(keys[keys >> 16 == place] & (_HALF - 1), minlength=_HALF)

    def result(self, column: str) -> Distribution:
        return Distribution(
            column=column,
            counts=self.counts,
            edges=self.edges,
            low=self.low,
            high=self.high,
            quantiles=tuple(self._value(rank) for rank in self._ranks),
            n_beyond=self.n_beyond,
            n_missing=self.n_missing,
        )

    def _place(self, rank: int) -> int:
        """The upper half of the number that this many are before."""
        return int(np.searchsorted(self._below, rank, side="right"))

    def _value(self, rank: int) -> float:
        place = self._place(rank)
        before = int(self._below[place] - self.upper[place])
        low = int(np.searchsorted(np.cumsum(self._lower[place]), rank - before, side="right"))
        return _number(place << 16 | low)

    def _bars(self) -> np.ndarray:
        """From the least to the greatest value, or without long tails where there are any."""
        tail = int(self.n * _TAIL)
        low = max(self.low, _number(self._place(tail) << 16))
        high = min(self.high, _number(self._place(self.n - 1 - tail) << 16 | _HALF - 1))
        if high - low > 0.5 * (self.high - self.low):
            low, high = self.low, self.high
        length = (high - low) or abs(low) or 1.0
        step = round_step(length, BARS)
        first, last = math.floor(low / step), math.ceil(high / step)
        return np.arange(first, max(last, first + 1) + 1) * step


def _keys(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the numbers: those of IEEE 754, the negative ones turned around."""
    limit = np.finfo(np.float32).max
    bits = values.clip(-limit, limit).astype(np.float32).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def _number(key: int) -> float:
    bits = np.uint32(key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF)
    value = float(bits.view(np.float32))
    limit = float(np.finfo(np.float32).max)
    return max(-limit, min(limit, value)) if not math.isnan(value) else limit
