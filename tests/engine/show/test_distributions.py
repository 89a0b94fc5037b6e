"""Counts and order statistics of columns that are read in parts, against NumPy on the whole."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cytopave.engine.show.distributions import QUANTILES, Distribution, distributions

if TYPE_CHECKING:
    from collections.abc import Iterator


def of(values: np.ndarray, step: int = 7) -> Distribution | None:
    def chunks() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(values), step):
            yield {"a": values[start : start + step]}

    return distributions(chunks, ["a"]).get("a")


def check(values: np.ndarray, step: int = 7) -> Distribution:
    found = of(values, step)
    assert found is not None
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found.n == len(finite)
    assert found.n_missing == len(values) - len(finite)
    assert (found.low, found.high) == (finite.min(), finite.max())
    wanted = np.quantile(finite.astype(np.float32), QUANTILES, method="inverted_cdf")
    assert found.quantiles == tuple(map(float, wanted))
    edges = found.edges
    inside = finite[(finite >= edges[0]) & (finite <= edges[-1])]
    assert found.n_beyond == len(finite) - len(inside)
    counts = np.histogram(inside, edges)[0]
    np.testing.assert_array_equal(found.counts[1:-1], counts[1:-1])
    return found


@pytest.mark.parametrize("kind", ["normal", "lognormal", "integers", "negative", "tiny"])
def test_chunks_give_what_the_whole_gives(kind: str) -> None:
    rng = np.random.default_rng(3)
    values = {
        "normal": rng.normal(5, 40, 20_000),
        "lognormal": rng.lognormal(3, 2, 20_000),
        "integers": rng.integers(0, 30, 20_000),
        "negative": -rng.gamma(2, 1e5, 20_000),
        "tiny": rng.normal(0, 1e-30, 20_000),
    }[kind]
    found = check(values, 3001)
    assert 10 <= len(found.counts) <= 60
    # Round edges, of which the bars' width is one in the sense of 1, 2, 5.
    mantissa = f"{np.diff(found.edges)[0]:.6e}".split("e")[0]
    assert float(mantissa) in (1, 2, 5)


@settings(max_examples=100)
@given(hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(width=32)))
def test_any_numbers(values: np.ndarray) -> None:
    if np.isfinite(values).any():
        check(values)
    else:
        assert of(values) is None


def test_a_long_tail_does_not_flatten_the_rest() -> None:
    values = np.concatenate([np.linspace(0, 10, 1000), [1e6, 2e6]])
    found = check(values)
    assert found.edges[-1] < 20
    assert (found.n_beyond, found.high) == (2, 2e6)
    assert found.counts[-1] >= 2  # they are in the outer bar


def test_one_value_and_none() -> None:
    found = check(np.full(9, 3.25))
    assert found.counts.sum() == found.counts.max() == 9
    assert check(np.zeros(4)).quantiles == (0, 0, 0)
    assert of(np.empty(0)) is None


def test_several_columns_are_read_together() -> None:
    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=500), "b": np.full(500, np.nan), "c": rng.integers(0, 9, 500)}
    calls = itertools.count()

    def chunks() -> Iterator[dict[str, np.ndarray]]:
        next(calls)
        yield table

    found = distributions(chunks, ["a", "b", "c"])
    assert list(found) == ["a", "c"]
    assert next(calls) == 2  # two passes for all of them
