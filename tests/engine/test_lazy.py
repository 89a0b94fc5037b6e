"""Sequences that store nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.lazy import Lazy, grouped, product


def test_items_are_made_when_asked_for() -> None:
    made: list[int] = []
    squares = Lazy(10**12, lambda i: made.append(i) or i * i)  # type: ignore[func-returns-value]
    assert len(squares) == 10**12
    assert squares[7] == 49
    assert squares[-1] == (10**12 - 1) ** 2
    assert squares[3:6] == [9, 16, 25]
    assert made == [7, 10**12 - 1, 3, 4, 5]
    with pytest.raises(IndexError):
        squares[10**12]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_a_product_is_in_the_order_of_itertools(sizes: list[int]) -> None:
    axes = [[f"{axis}{i}" for i in range(n)] for axis, n in enumerate(sizes)]
    assert list(product(axes)) == list(itertools.product(*axes))


@given(st.integers(0, 50), st.integers(0, 60))
def test_groups_are_nearly_equal_and_hold_each_item_once(length: int, n: int) -> None:
    groups = grouped(range(length), n)
    assert list(itertools.chain.from_iterable(groups)) == list(range(length))
    sizes = [len(group) for group in groups]
    assert len(sizes) == max(1, min(n, length))
    assert max(sizes) - min(sizes) <= 1
