"""Parents and counts, block by block, as NumPy finds them in the whole arrays."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from related import related

from cytopave.engine.boxes import Box
from cytopave.engine.relations.overlap import (
    add_counts,
    count_children,
    count_pairs,
    join,
    parents_of,
)


@given(st.data())
@settings(max_examples=200)
def test_any_labels_in_any_blocks(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(1, 9 if n == 2 else 5)) for _ in range(n))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    dtypes = st.sampled_from(["uint8", "uint32", "uint64", "int32", "int64"])
    child, parent = (
        rng.integers(0, data.draw(st.integers(1, 6)) + 1, shape).astype(data.draw(dtypes))
        for _ in range(2)
    )
    if parent.dtype == np.uint64:
        parent <<= np.uint64(40)
    step = tuple(data.draw(st.integers(1, s)) for s in shape)
    blocks = Box.of(shape).blocks(step)
    pairs = join(
        np.concatenate([count_pairs(child[b.slices], parent[b.slices], 3) for b in blocks])
    )
    rows = parents_of(pairs)
    assert set(rows["time"].tolist()) <= {3}
    found = {int(r["label"]): (int(r["parent"]), float(r["fraction"])) for r in rows}
    wanted = related(child, parent)
    assert found == wanted
    assert list(found) == sorted(wanted)
    half = len(rows) // 2
    parts = [count_children(rows[:half]), count_children(rows[half:])]
    counts = add_counts(np.concatenate(parts))
    by_parent = {int(r["label"]): int(r["n"]) for r in counts}
    assert by_parent == Counter(p for p, _ in wanted.values() if p)


def test_the_lower_id_wins_where_two_have_as_much() -> None:
    child = np.array([[5, 5, 5, 5, 0, 6]])
    parent = np.array([[9, 9, 2, 2, 2, 0]])
    rows = parents_of(count_pairs(child, parent, 0))
    assert rows["parent"].tolist() == [2, 0]
    assert rows["fraction"].tolist() == [0.5, 0.0]
