"""A refinement, decided: which operations follow each other, on which blocks, and what it makes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from cytopave.engine.lazy import grouped
from cytopave.engine.omezarr import publish, pyramid
from cytopave.engine.omezarr.image import Image
from cytopave.engine.omezarr.labels import LabelTarget
from cytopave.engine.refine import Expand, FillHoles, Operation, Relabel
from cytopave.engine.scratch.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.lazy import Lazy
    from cytopave.engine.omezarr.labels import WriteBlock

# Raise it whenever what an earlier version left in scratch folders must not be used again.
CODE_VERSION = 1

LEAST_PIXELS, MOST_PIXELS = 1 << 22, 1 << 26
"""Pixels of a task, which costs about 0.2 s beside its work: of small images and large ones."""

_TASKS = 64  # where neither bound holds


class Step(BaseModel):
    """Operations that take one look at the labels.

    Attributes:
        operations: A single one that changes pixels; or some that select objects, `Relabel` last.
    """

    model_config = ConfigDict(frozen=True)

    operations: tuple[Operation, ...]

    @property
    def paints(self) -> FillHoles | Expand | None:
        """The operation that changes pixels, if it does."""
        first = self.operations[0] if self.operations else None
        return first if isinstance(first, FillHoles | Expand) else None

    @property
    def looks(self) -> bool:
        """Whether blocks have to be looked at before something is decided about them."""
        return not isinstance(self.paints, Expand)

    @property
    def name(self) -> str:
        """What logs call it."""
        return ", ".join(o.kind.replace("_", " ") for o in self.operations) or "count objects"


class Refinement(Saved):
    """Everything that a run depends on; workers read it from the scratch folder.

    Attributes:
        digest: Names what the run makes.
        labels: The labels, level 0.
        place: URL of the label image, or of the array that holds the labels.
        fingerprint: Of the labels.
        made: What their attributes say of how cytopave made them.
        steps: What is done, in order.
        target: Where the result goes; its blocks are those of all steps.
    """

    digest: str
    labels: Image
    place: str
    fingerprint: str
    made: dict[str, Any] | None
    steps: tuple[Step, ...]
    target: LabelTarget

    @property
    def blocks(self) -> Lazy[WriteBlock]:
        """The parts of the labels that are worked on by themselves."""
        return self.target.blocks()

    @property
    def blocks_per_axis(self) -> tuple[int, ...]:
        """Number of blocks along ([Z], Y, X)."""
        edges = pyramid.unit_edges(self.target.spatial_shape, self.target.plan)
        return tuple(len(axis) - 1 for axis in edges)

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Indices of the blocks of each task. The same on any number of workers."""
        whole = math.prod(self.labels.spatial_shape) * self.labels.n_times
        task = min(max(whole // _TASKS, LEAST_PIXELS), MOST_PIXELS)
        return grouped(range(len(self.blocks)), -(-whole // task))

    @property
    def last(self) -> int:
        """Number of the step that writes the result: one of its own after a selection."""
        return len(self.steps) - bool(self.steps[-1].paints)

    @property
    def interrupted(self) -> bool:
        """Whether the result is in its place, and the run was killed right after it came there."""
        if self.ended.exists() or publish.digest_of(self.target.published) != self.digest:
            return False
        return all(self.painted(self.last, g).exists() for g in range(len(self.groups)))

    @property
    def ended(self) -> Path:
        """The file that a run leaves when it has published."""
        return self.root / "step-0" / "published"

    def folder(self, step: int) -> Path:
        """What a step leaves."""
        return self.root / f"step-{step}"

    def painted(self, step: int, group: int) -> Path:
        """What says that a group of blocks is painted, and how many pixels objects gained."""
        return self.folder(step) / "painted" / f"{group}.json"


def cut_into_steps(operations: Sequence[Operation]) -> tuple[Step, ...]:
    """Operations that can share a look at the labels, together; at least one counts the objects."""
    steps: list[list[Operation]] = []
    for operation in operations:
        alone = isinstance(operation, FillHoles | Expand)
        after = steps[-1][-1] if steps else None
        if alone or after is None or isinstance(after, FillHoles | Expand | Relabel):
            steps.append([])
        steps[-1].append(operation)
    if all(isinstance(step[0], FillHoles | Expand) for step in steps):
        steps.insert(0, [])
    return tuple(Step(operations=tuple(step)) for step in steps)


def unsigned(dtype: Any) -> np.dtype[Any]:
    """The type of label images that holds all ids of another integer type."""
    return np.dtype(np.uint64 if np.dtype(dtype).itemsize > 4 else np.uint32)
