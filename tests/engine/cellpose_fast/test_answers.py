from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from networks import BrightPatches

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.answers import Answer, Answers
from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
from cytopave.engine.segmenters.cellpose_placed import region
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Hashable


class Negative:
    """Answers with the negative of what it sees, and notes how many it saw at a time."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.seen: list[int] = []
        self.fails = False

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("no memory")
        self.seen.append(len(patches))
        return -patches


def answers_of(batch: int, *, keep: int = 100) -> tuple[Answers, Any]:
    network: Any = Negative(batch)
    return Answers(network, keep_bytes=keep * 4), network


def ask(answers: Answers, *keys: int) -> list[Answer]:
    """Patches of one number each, which is their key."""
    wanted: dict[Hashable, Any] = {k: lambda k=k: torch.tensor([float(k)]) for k in keys}
    return answers.ask(wanted)


def said(asked: list[Answer]) -> list[float | None]:
    return [None if a.maps is None else float(a.maps) for a in asked]


def test_full_batches_are_evaluated_and_the_rest_waits_for_the_next_window() -> None:
    answers, network = answers_of(4)
    first = ask(answers, 1, 2, 3, 4, 5, 6)
    assert said(first) == [-1, -2, -3, -4, None, None]
    second = ask(answers, 7, 8, 9)
    assert said(first) == [-1, -2, -3, -4, -5, -6]
    assert said(second) == [-7, -8, None]
    answers.complete(second)
    assert said(second) == [-7, -8, -9]
    assert network.seen == [4, 4, 1]


def test_what_waits_for_one_window_is_not_asked_for_again_by_another() -> None:
    answers, network = answers_of(4)
    first = ask(answers, 1, 2)
    second = ask(answers, 2, 3)
    assert second[0] is first[1]
    assert (answers.evaluated, answers.reused) == (3, 1)
    answers.complete(first)  # and the other patch fills up the batch
    assert said(first) + said(second) == [-1, -2, -2, -3]
    assert network.seen == [3]
    answers.complete(second)
    assert network.seen == [3]
    assert said(ask(answers, 3, 1)) == [-3, -1]
    assert network.seen == [3]


def test_an_answer_outlives_what_is_kept() -> None:
    answers, network = answers_of(1, keep=1)
    first = ask(answers, 1, 2, 3)
    assert list(answers.kept) == [3]
    assert said(first) == [-1, -2, -3]
    ask(answers, 3, 1)
    assert network.seen == [1, 1, 1, 1]


def test_a_patch_that_waits_does_not_keep_its_window() -> None:
    answers, _ = answers_of(2)
    window = torch.arange(100.0)
    asked = answers.ask({"a": lambda: window[:1]})
    assert asked[0].patch is not None
    assert asked[0].patch.untyped_storage().nbytes() == 4


def test_a_network_that_fails_can_be_asked_again() -> None:
    answers, network = answers_of(2)
    first = ask(answers, 1)
    network.fails = True
    with pytest.raises(RuntimeError, match="no memory"):
        ask(answers, 2, 3)
    network.fails = False
    assert said(ask(answers, 2, 3)) == [-2, None]
    assert said(first) == [-1]


def test_what_waits_is_completed_by_the_network_that_came_after() -> None:
    first = ask(answers_of(8)[0], 1, 2, 3)
    after, network = answers_of(2)
    waiting = ask(after, 3)
    after.complete(first)
    assert said(first) == [-1, -2, -3]
    assert network.seen == [2, 2]
    assert said(waiting) == [-3]
    after.complete(waiting)
    assert network.seen == [2, 2]


def test_windows_that_share_batches_are_as_those_by_themselves() -> None:
    shape = (500, 700)
    random = np.random.default_rng(0)
    image = np.zeros(shape, np.float32)
    y, x = np.indices(shape)
    for cy, cx in random.uniform(0, shape, (80, 2)):
        image[(y - cy) ** 2 + (x - cx) ** 2 < random.uniform(6, 11) ** 2] = 1
    recipe = Recipe(1.0, ((0.0, 1.0),), 0.0, 0.0, 5, 60)
    places = [
        Place("image", 0, shape, region(window, shape, rescale=1.0), window)
        for window in Box.of(shape).blocks((240, 260))
    ]
    tiles = [image[None][:, *place.region.slices] for place in places]
    alone: Any = BrightPatches()
    expected = [Evaluator(alone)(t, p, recipe) for t, p in zip(tiles, places, strict=True)]

    together: Any = BrightPatches()
    together.batch = 5
    evaluator = Evaluator(together, keep_bytes=0)
    found = []
    begun = None
    for tile, place in zip(tiles, places, strict=True):
        last, begun = begun, evaluator.begin(tile, place, recipe)
        if last is not None:
            found.append(last.settle(lambda: evaluator).finish())
    assert begun is not None
    found.append(begun.settle(lambda: evaluator).finish())
    assert sum(labels.max() for labels in expected) > 40
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)
