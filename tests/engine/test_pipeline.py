"""Three stages at once: every item ends once, in order, within the bound, whatever fails."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.pipeline import Pipeline

SECONDS = 20
"""Longest wait of one stage for another: reached only where they do not overlap."""


class Payload:
    """What travels from stage to stage."""

    def __init__(self, item: int) -> None:
        self.item = item


@dataclass
class Stages:
    """Stages that keep a record of themselves, and fail for some items."""

    fail: dict[int, str] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    threads: dict[str, set[str]] = field(default_factory=dict)
    alive: weakref.WeakSet[Payload] = field(default_factory=weakref.WeakSet)
    most_alive: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _record(self, stage: str, item: int) -> None:
        with self.lock:
            self.calls.append((stage, item))
            self.threads.setdefault(stage, set()).add(threading.current_thread().name)
        if self.fail.get(item) == stage:
            raise ValueError(f"{stage} {item}")

    def read(self, item: int) -> Payload:
        payload = Payload(item)
        with self.lock:
            self.alive.add(payload)
            self.most_alive = max(self.most_alive, len(self.alive))
        self._record("read", item)
        return payload

    def begin(self, item: int, payload: Payload) -> Payload:
        self._record("begin", item)
        return payload

    def settle(self, item: int, payload: Payload) -> Payload:
        self._record("settle", item)
        return payload

    def finish(self, item: int, payload: Payload) -> int:
        self._record("finish", item)
        return payload.item * 10

    def pipeline(self, *, settles: bool, **options: Any) -> Pipeline[int, int]:
        settle = self.settle if settles else None
        return Pipeline(self.read, self.begin, self.finish, settle, **options)

    def of(self, stage: str) -> list[int]:
        return [item for s, item in self.calls if s == stage]


@given(
    st.integers(0, 12),
    st.integers(1, 7),
    st.integers(1, 3),
    st.booleans(),
    st.dictionaries(st.integers(0, 11), st.sampled_from(["read", "begin", "settle", "finish"])),
)
def test_every_item_ends_once(
    n: int, bound: int, finishers: int, settles: bool, fail: dict[int, str]
) -> None:
    stages = Stages(fail)
    pipeline = stages.pipeline(settles=settles, bound=bound, finishers=finishers)
    ended = {}
    for item, result, error in pipeline.run(range(n)):
        assert item not in ended
        ended[item] = (result, str(error) if error else None)
        del error
    fail = {i: s for i, s in fail.items() if i < n and (settles or s != "settle")}
    assert ended == {i: (None, f"{fail[i]} {i}") if i in fail else (10 * i, None) for i in range(n)}
    if not fail:  # what is alive was taken and has not ended
        assert stages.most_alive <= bound
        assert not stages.alive
    # The caller works, in order; others read and finish.
    caller = {threading.current_thread().name}
    worked = [i for i in range(n) if fail.get(i) != "read"]
    assert stages.of("read") == list(range(n))
    assert stages.of("begin") == worked
    assert stages.of("settle") == ([i for i in worked if fail.get(i) != "begin"] if settles else [])
    assert stages.threads.get("begin", caller) == stages.threads.get("settle", caller) == caller
    assert not caller & (stages.threads.get("read", set()) | stages.threads.get("finish", set()))


def test_with_room_for_one_nothing_overlaps() -> None:
    stages = Stages()
    list(stages.pipeline(settles=True, bound=1).run(range(3)))
    order = ("read", "begin", "settle", "finish")
    assert stages.calls == [(stage, item) for item in range(3) for stage in order]


@pytest.mark.parametrize("stage", ["read", "begin", "settle", "finish"])
def test_a_failure_keeps_nothing_for_long(stage: str) -> None:
    stages = Stages(fail=dict.fromkeys(range(4), stage))
    assert len([str(error) for _, _, error in stages.pipeline(settles=True).run(range(4))]) == 4
    gc.collect()  # an exception's frames hold each other
    assert not stages.alive


def test_an_item_is_settled_when_the_next_has_begun() -> None:
    stages = Stages(fail={2: "begin"})
    list(stages.pipeline(settles=True, bound=4).run(range(4)))
    device = [c for c in stages.calls if c[0] in ("begin", "settle")]
    assert device == [
        ("begin", 0),
        ("begin", 1),
        ("settle", 0),
        ("begin", 2),
        ("settle", 1),
        ("begin", 3),
        ("settle", 3),
    ]


@pytest.mark.parametrize("settles", [False, True])
def test_reading_working_and_finishing_overlap(settles: bool) -> None:
    """The work on an item, the reading of a later and the finishing of an earlier one meet."""
    meeting = threading.Barrier(3)
    last = 0 if settles else 1
    stages = Stages()

    def meet(stage: Callable[..., Any], at: int) -> Callable[..., Any]:
        def met(item: int, *args: Any) -> Any:
            if item == at:
                meeting.wait(SECONDS)
            return stage(item, *args)

        return met

    pipeline = Pipeline(
        meet(stages.read, 3),
        meet(stages.begin, 2),
        meet(stages.finish, last),
        stages.settle if settles else None,
    )
    assert sorted(r or 0 for _, r, _ in pipeline.run(range(5))) == [0, 10, 20, 30, 40]


def test_several_are_finished_at_once() -> None:
    meeting = threading.Barrier(2)

    def finish(item: int, _: object) -> int:
        meeting.wait(SECONDS)
        return item

    pipeline: Pipeline[int, int] = Pipeline(lambda i: i, lambda _, r: r, finish, finishers=2)
    assert sorted(r for _, r, _ in pipeline.run(range(4)) if r is not None) == [0, 1, 2, 3]


@pytest.mark.parametrize("stage", ["read", "begin", "settle", "finish"])
def test_an_interrupt_ends_all(stage: str) -> None:
    stages = Stages()
    inner = getattr(stages, stage)

    def interrupted(item: int, *args: Any) -> Any:
        if item == 1:
            raise KeyboardInterrupt
        return inner(item, *args)

    setattr(stages, stage, interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stages.pipeline(settles=True, bound=3).run(range(50)))
    assert len(stages.of("begin")) < 8
    assert not [t for t in threading.enumerate() if t.name.startswith(("read_", "finish_"))]


def test_a_consumer_may_stop() -> None:
    stages = Stages()
    with closing(stages.pipeline(settles=False, bound=3).run(range(50))) as outcomes:
        assert next(outcomes).item == 0
    assert len(stages.of("read")) <= 8
    assert stages.of("finish") == stages.of("begin"), "what was worked on is finished"


def test_items_are_taken_as_there_is_room() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(10):
            taken.append(i)
            yield i

    ended = 0
    for _ in Stages().pipeline(settles=True, bound=3).run(items()):
        ended += 1
        assert len(taken) - ended < 3 + 1
    assert ended == 10


@pytest.mark.parametrize("options", [{"bound": 0}, {"finishers": 0}])
def test_without_room_there_is_no_pipeline(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="room for one"):
        Stages().pipeline(settles=False, **options)
