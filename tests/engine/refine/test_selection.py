"""What decides about whole objects, as scikit-image decides on the whole array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from images import ImageOf
from runs import components
from skimage.morphology import remove_small_objects
from skimage.segmentation import clear_border

from cytopave.engine.boxes import Box
from cytopave.engine.errors import LabelError
from cytopave.engine.refine import ClearBorder, Relabel, RemoveLarge, RemoveSmall, selection
from cytopave.engine.refine.census import count_block, join
from cytopave.engine.scratch.archive import write_array

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image


def selected(
    labels: np.ndarray,
    rules: list[Any],
    step: tuple[int, ...],
    folder: Path,
    *,
    relabel: bool = False,
    axes: str | None = None,
) -> np.ndarray:
    """Census in blocks, a file each; decision; the labels after it, block by block."""
    image: Image = ImageOf(folder)(labels, axes=axes)
    frames = labels if "t" in image.axes else labels[None]
    blocks, shape = Box.of(frames.shape[1:]).blocks(step), frames.shape[1:]
    paths: list[Path] = []
    for time, frame in enumerate(frames):
        for block in blocks:
            paths.append(folder / f"{len(paths)}.npy")
            write_array(paths[-1], join(count_block(frame[block.slices], block, shape, time)))
    selection.decide(paths, rules, relabel=relabel, labels=image, folder=folder)
    found = selection.Selection.load(folder)
    dtype = found.new.dtype if found.new is not None else labels.dtype
    out = np.zeros(frames.shape, dtype)
    for time, frame in enumerate(frames):
        for block in blocks:
            out[time][block.slices] = found.apply(frame[block.slices], time)
    return out.reshape(labels.shape)


def of_seed(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Connected objects of all sizes; ids in no order."""
    rng = np.random.default_rng(seed)
    labels = components(rng.random(shape) < 0.35)
    ids = np.concatenate([[0], rng.permutation(3 * labels.max())[: labels.max()] + 1])
    return np.asarray(ids[labels], np.uint32)


def steps(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(-(-n // 3), n) for n in shape))


def raster_ids(labels: np.ndarray) -> np.ndarray:
    """Ids by first pixel, by NumPy."""
    ids, first = np.unique(labels, return_index=True)
    ids, first = ids[ids > 0], first[ids > 0]
    table = np.zeros(int(labels.max(initial=0)) + 1, np.int64)
    table[ids[np.argsort(first)]] = np.arange(1, len(ids) + 1)
    return np.asarray(table[labels])


@pytest.mark.parametrize("shape", [(14, 17), (5, 8, 9)])
@given(data=st.data())
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_labels_in_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], data: st.DataObject
) -> None:
    labels = of_seed(data.draw(st.integers(0, 2**32 - 1)), shape)
    step = data.draw(steps(shape))
    small, large = data.draw(st.integers(1, 9)), data.draw(st.integers(3, 30))
    margin = data.draw(st.integers(0, 1))

    def ours(*rules: Any, relabel: bool = False) -> np.ndarray:
        return selected(labels, [*rules], step, tmp_path_factory.mktemp("a"), relabel=relabel)

    wanted = remove_small_objects(labels, max_size=small - 1)
    np.testing.assert_array_equal(ours(RemoveSmall(size=small)), wanted)
    sizes = np.bincount(labels.ravel())
    wanted = np.where(sizes[labels] <= large, labels, 0)
    np.testing.assert_array_equal(ours(RemoveLarge(size=large)), wanted)
    wanted = clear_border(labels, buffer_size=margin)
    np.testing.assert_array_equal(ours(ClearBorder(margin=margin)), wanted)
    np.testing.assert_array_equal(ours(relabel=True), raster_ids(labels))
    wanted = clear_border(remove_small_objects(labels, max_size=small - 1))
    found = ours(RemoveSmall(size=small), ClearBorder(), relabel=True)
    np.testing.assert_array_equal(found, raster_ids(wanted))


def test_planewise_borders_of_a_stack(tmp_path: Path) -> None:
    labels = np.zeros((3, 9, 9), np.uint16)
    labels[0, 4, 4], labels[:, 6, 6], labels[1, 0, 4] = 1, 2, 3
    found = selected(labels, [ClearBorder(planewise=True)], (2, 5, 5), tmp_path)
    np.testing.assert_array_equal(found, np.where(labels == 3, 0, labels))


def test_time_points_are_decided_by_themselves_and_ids_stay_together(tmp_path: Path) -> None:
    labels = np.zeros((3, 8, 8), np.uint32)
    labels[0, 2:4, 2:4], labels[1, 2, 2], labels[2, 2:6, 2:6] = 7, 7, 7
    labels[0, 5, 5], labels[2, 0, 0] = 5, 9
    rules = [RemoveSmall(size=2)]
    found = selected(labels, rules, (3, 5), tmp_path, axes="tyx")
    wanted = np.where(labels == 7, labels, 0)
    wanted[1] = 0
    np.testing.assert_array_equal(found, wanted)
    (tmp_path / "b").mkdir()
    found = selected(labels, [], (3, 5), tmp_path / "b", relabel=True, axes="tyx")
    assert [int(found[labels == i].max()) for i in (7, 5, 9)] == [1, 2, 3]
    assert found.dtype == np.uint32


def test_counts_of_what_each_rule_removed(tmp_path: Path) -> None:
    labels = np.array([[1, 0, 2, 2, 0], [0, 0, 0, 0, 0], [0, 3, 0, 4, 4]], np.uint32)
    selected(labels, [RemoveSmall(size=2), RemoveLarge(size=1)], (2, 2), tmp_path)
    assert selection.counts(tmp_path) == (4, [2, 2])


def test_a_margin_that_leaves_nothing(tmp_path: Path) -> None:
    image = ImageOf(tmp_path)(np.zeros((2, 30, 30), np.uint8))
    with pytest.raises(LabelError, match="take a smaller margin"):
        ClearBorder().check(image)
    ClearBorder(planewise=True, margin=5).check(image)


def test_no_objects_at_all(tmp_path: Path) -> None:
    labels = np.zeros((9, 9), np.uint32)
    found = selected(labels, [RemoveSmall(size=3), ClearBorder()], (4, 4), tmp_path, relabel=True)
    assert not found.any()


def test_relabel_takes_no_options() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        Relabel(start=5)  # type: ignore[call-arg]
