"""Sequences of which nothing is stored: a run has millions of tiles, and each task needs a few."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import overload


class Lazy[T](Sequence[T]):
    """A sequence whose items are made when they are asked for.

    Args:
        length: Number of items.
        make: Gives the item of an index from 0 on.
    """

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._length))]
        return self._make(range(self._length)[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._length))


def grouped[T](items: Sequence[T], n: int) -> Lazy[tuple[T, ...]]:
    """Cut a sequence into at most ``n`` runs of nearly equal length."""
    n = max(1, min(n, len(items)))
    return Lazy(
        n, lambda i: tuple(items[round(i * len(items) / n) : round((i + 1) * len(items) / n)])
    )


def product[T](axes: Sequence[Sequence[T]]) -> Lazy[tuple[T, ...]]:
    """What ``itertools.product`` gives, in its order."""
    sizes = [len(axis) for axis in axes]
    strides = [*itertools.accumulate(reversed(sizes[1:]), lambda a, b: a * b, initial=1)][::-1]
    length = strides[0] * sizes[0]
    return Lazy(
        length,
        lambda i: tuple(
            axis[i // stride % size]
            for axis, stride, size in zip(axes, strides, sizes, strict=True)
        ),
    )
