from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.atlas.write import plan_parts


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 40),
)
def test_parts_are_whole_chunks_and_each_value_is_in_one(
    lengths: list[int], rows: int, values: int
) -> None:
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    total = int(ends[-1])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    position = 0
    for part in plan_parts(ends, rows, values=values):
        assert part.begin == position
        assert part.begin % values == 0
        assert part.end % values == 0 or part.end == total
        # The rows that a part reads are those that its values are of.
        read = np.flatnonzero((owner >= part.first) & (owner < part.stop))
        chosen = read[part.skip : part.skip + part.end - part.begin]
        np.testing.assert_array_equal(chosen, np.arange(part.begin, part.end))
        position = part.end
    assert position == total
