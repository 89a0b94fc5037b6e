"""Holes, block by block, as SciPy fills them object by object in the whole array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refined import filled

from cytopave.engine.boxes import Box
from cytopave.engine.refine import enclosed, fill_holes
from cytopave.engine.refine.atoms import find_atoms
from cytopave.engine.scratch.archive import Archive, write_archive


def by_blocks(labels: np.ndarray, step: tuple[int, ...], *, planewise: bool = False) -> np.ndarray:
    """The room's three stages on blocks of a shape."""
    blocks = Box.of(labels.shape).blocks(step)
    counts = [-(-n // s) for n, s in zip(labels.shape, step, strict=True)]
    atoms = [find_atoms(labels[b.slices], b, labels.shape, planewise=planewise) for b in blocks]
    out = np.empty_like(labels)
    found = fill_holes.find_holes(atoms.__getitem__, counts, planewise=planewise)
    for block, holes in zip(blocks, found, strict=True):
        out[block.slices] = fill_holes.paint(labels[block.slices], holes, planewise=planewise)
    return out


@st.composite
def labels_in_blocks(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """Labels with holes of every kind: noise, or thicker things; and the shape of a block."""
    n = draw(st.integers(2, 3))
    shape = tuple(draw(st.integers(1, 13 if n == 2 else 6)) for _ in range(n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    zoom = draw(st.integers(1, 2))
    coarse = tuple(-(-s // zoom) for s in shape)
    values = rng.integers(1, draw(st.integers(2, 5)), coarse)
    values[rng.random(coarse) < draw(st.floats(0.1, 0.6))] = 0
    labels = values.repeat(zoom, 0).repeat(zoom, 1)
    labels = labels.repeat(zoom, 2) if n == 3 else labels
    labels = labels[tuple(slice(s) for s in shape)]
    step = tuple(draw(st.integers(1, s)) for s in shape)
    return labels.astype(np.uint32), step


@given(labels_in_blocks())
@settings(max_examples=300)
def test_any_labels_in_any_blocks(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    labels, step = case
    np.testing.assert_array_equal(by_blocks(labels, step), filled(labels))
    if labels.ndim == 3:
        wanted = np.stack([filled(plane) for plane in labels])
        np.testing.assert_array_equal(by_blocks(labels, step, planewise=True), wanted)


def rings(*radii: float, size: int = 121, ids: tuple[int, ...] = ()) -> np.ndarray:
    """Rings in each other, three pixels thick."""
    y, x = np.indices((size, size)) - size // 2
    away = np.hypot(y, x)
    labels = np.zeros((size, size), np.uint64)
    for number, radius in enumerate(radii):
        labels[np.abs(away - radius) < 1.6] = ids[number] if ids else number + 1
    return labels


@pytest.mark.parametrize("step", [7, 16, 40, 121])
def test_an_object_of_many_blocks_is_filled(step: int) -> None:
    labels = rings(55)
    found = by_blocks(labels, (step, step))
    np.testing.assert_array_equal(found, filled(labels))
    assert found[60, 60] == 1
    labels[60, :30] = 0  # open: a hole no longer
    np.testing.assert_array_equal(by_blocks(labels, (step, step)), labels)


@pytest.mark.parametrize("ids", [(1, 2, 3), (3, 2, 1), (2**40, 7, 2**33)])
@pytest.mark.parametrize("step", [16, 50])
def test_what_lies_in_each_other(step: int, ids: tuple[int, ...]) -> None:
    """Background between two rings is the outer one's, that in the innermost its own."""
    labels = rings(55, 35, 15, ids=ids)
    labels[58:63, 76:80] = 9  # a cell between two of them stays
    found = by_blocks(labels, (step, step))
    np.testing.assert_array_equal(found, filled(labels))
    assert [int(found[60, 60 + r]) for r in (45, 25, 0)] == [*ids]
    assert (found[labels > 0] == labels[labels > 0]).all()


def test_two_half_rings_enclose_together_and_fill_nothing() -> None:
    labels = rings(40)
    labels[:60] *= 2
    np.testing.assert_array_equal(by_blocks(labels, (16, 16)), labels)
    np.testing.assert_array_equal(filled(labels), labels)


@pytest.mark.parametrize("at_once", [5, 1 << 20])
def test_cells_within_a_ring(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that touch each other, and the gaps between them: all of it is in the ring."""
    monkeypatch.setattr(enclosed, "_AT_ONCE", at_once)
    labels = rings(55)
    y, x = np.indices(labels.shape)
    inside = np.hypot(y - 60, x - 60) < 50
    cells = (y // 9) * 14 + x // 9 + 10
    gaps = ((y % 9 == 0) & (x % 9 < 3)) | (y % 27 == 0)
    labels = np.where(inside & ~gaps, cells, labels).astype(np.uint64)
    found = by_blocks(labels, (32, 32))
    np.testing.assert_array_equal(found, filled(labels))
    assert (found[inside & (labels == 0)] == 1).all()


def test_a_tube_is_open_at_its_ends_unless_planes_are_taken_by_themselves() -> None:
    labels = np.stack([rings(6, size=21)] * 9).astype(np.uint32)
    np.testing.assert_array_equal(by_blocks(labels, (4, 8, 8)), labels)
    assert (by_blocks(labels, (4, 8, 8), planewise=True)[:, 10, 10] == 1).all()
    labels[0], labels[-1] = filled(labels[0]), filled(labels[-1])
    found = by_blocks(labels, (4, 8, 8))
    np.testing.assert_array_equal(found, filled(labels))
    assert (found[:, 10, 10] == 1).all()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=5)
@example(0)
def test_atoms_survive_being_stored(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 3, (6, 7, 8)).astype(np.uint32)
    atoms = find_atoms(labels, Box.of(labels.shape), labels.shape, planewise=False)
    path = tmp_path_factory.mktemp("atoms") / "a.zip"
    write_archive(path, atoms.arrays())
    again = type(atoms).of(Archive.open(path))
    for name, array in atoms.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
