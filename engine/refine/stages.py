"""A refinement, cut into stages that can be spread over workers.

For each step: `look` (any number of groups), `decide` (once), `paint` (any number of groups); what
a step has no need of is left out (`phases`). Then `publish`. What is finished is not done again:
groups leave files, written whole or not at all.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from cytopave.engine.allocator import keep_freed_memory
from cytopave.engine.errors import OutputError
from cytopave.engine.pipeline import Pipeline
from cytopave.engine.refine import Expand, FillHoles, Relabel, fill_holes, selection
from cytopave.engine.refine.atoms import Atoms, find_atoms
from cytopave.engine.refine.census import ROW, count_block, join
from cytopave.engine.refine.report import Done, RefineReport
from cytopave.engine.refine.source import Source
from cytopave.engine.scratch.archive import Archive, write_archive, write_array, write_bytes
from cytopave.engine.tables.fingerprint import is_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cytopave.engine.refine.refinement import Refinement
    from cytopave.engine.tiling import Tile

_IN_HAND = 3  # blocks that are read, worked on and written at a time


class Phase(NamedTuple):
    """A stage of a step; mapped ones are run for each group of blocks."""

    step: int
    act: Literal["look", "decide", "paint"]
    name: str

    @property
    def mapped(self) -> bool:
        """Whether it is run for each group."""
        return self.act != "decide"


def phases(refinement: Refinement) -> Iterator[Phase]:
    """All that has to be done before publication, in order."""
    if refinement.interrupted:
        return
    for number, step in enumerate(refinement.steps):
        if step.looks:
            yield Phase(number, "look", f"look: {step.name}")
        yield Phase(number, "decide", f"{'decide' if step.looks else 'prepare'}: {step.name}")
        if step.paints:
            yield Phase(number, "paint", step.name)
    if refinement.last == len(refinement.steps):
        yield Phase(refinement.last, "decide", "make the label image")
        yield Phase(refinement.last, "paint", "write")


def look(refinement: Refinement, step: int, group: int) -> None:
    """Look at a group of blocks: take a census, or find the atoms of each.

    Raises:
        CorruptError: A chunk is truncated or damaged.
        LabelError: An id is negative.
    """
    keep_freed_memory()
    paints = refinement.steps[step].paints
    if isinstance(paints, FillHoles):
        _look_for_atoms(refinement, step, group, planewise=paints.planewise)
        return
    path = _census_path(refinement, step, group)
    if path.exists():
        return
    source = Source.of(refinement, step)
    shape = refinement.labels.spatial_shape
    tiles = source.tiles(refinement.groups[group])
    rows = [np.empty(0, ROW)]
    for tile, labels in source.read_all(tiles):
        rows.append(count_block(labels, tile.core, shape, tile.time))
    write_array(path, join(np.concatenate(rows)))


def decide(refinement: Refinement, step: int) -> None:
    """Decide about what all groups have seen, and make room for what is painted next.

    Raises:
        CorruptError: A scratch file is missing or damaged.
        OutputError: The label image cannot be made.
    """
    folder = refinement.folder(step)
    if step < len(refinement.steps):
        now = refinement.steps[step]
        if isinstance(now.paints, FillHoles):
            _decide_holes(refinement, step, planewise=now.paints.planewise)
        elif not now.paints:
            rules: list[Any] = [o for o in now.operations if not isinstance(o, Relabel)]
            selection.decide(
                [_census_path(refinement, step, g) for g in range(len(refinement.groups))],
                rules,
                relabel=len(rules) < len(now.operations),
                labels=refinement.labels,
                folder=folder,
            )
            return
    dtype = Source.of(refinement, step).dtype
    if step == refinement.last:
        refinement.target.create(dtype)
    elif not (folder / "labels" / "zarr.json").exists():
        _create(refinement, folder / "labels", dtype)


def paint(refinement: Refinement, step: int, group: int) -> int:
    """Write what a group of blocks becomes; returns the number of pixels that objects gained.

    Raises:
        CorruptError: A chunk is truncated or damaged.
        OutputError: The label image cannot be written.
    """
    keep_freed_memory()
    mark = refinement.painted(step, group)
    final = step == refinement.last
    if mark.exists() and not final:
        return int(json.loads(mark.read_bytes()))
    now = refinement.steps[step].paints if step < len(refinement.steps) else None
    halo = now.halo(refinement.labels) if isinstance(now, Expand) else None
    source = Source.of(refinement, step)
    tiles = source.tiles(refinement.groups[group], halo=halo)
    reader = source.reader(tiles)
    writer, gained = refinement.target.writer(), 0

    def work(tile: Tile, labels: np.ndarray) -> np.ndarray:
        nonlocal gained
        inner = tile.core.within(tile.window)
        new = labels
        if isinstance(now, Expand):
            new = now.grow(labels, refinement.labels)
        elif isinstance(now, FillHoles):
            holes = _read_holes(refinement, step, tile.index)
            new = fill_holes.paint(labels, holes, planewise=now.planewise)
        if now is not None:
            gained += int(np.count_nonzero(new[inner]) - np.count_nonzero(labels[inner]))
        return new[inner]

    def write(tile: Tile, labels: np.ndarray) -> None:
        if final:
            writer.write(refinement.blocks[tile.index], labels)
            return
        array = zarr.open_array(str(refinement.folder(step) / "labels"), mode="r+")
        where: Any = tile.core.slices
        array[(tile.time, *where) if "t" in refinement.target.axes else where] = labels

    pipeline = Pipeline(lambda tile: source.read(reader, tile), work, write, bound=_IN_HAND)
    with closing(pipeline.run(tiles)) as ended:
        for _, _, error in ended:
            if error is not None:
                raise error
    write_bytes(mark, json.dumps(gained).encode())
    return gained


def publish(refinement: Refinement, provenance: Mapping[str, Any]) -> RefineReport:
    """Finish the pyramid, validate, and make the label image visible.

    Raises:
        OutputError: The name was taken, or the labels changed, meanwhile.
        CorruptError: What was written is not valid OME-Zarr.
    """
    if not refinement.interrupted and not is_unchanged(refinement.labels, refinement.fingerprint):
        raise OutputError(
            f"the labels {refinement.place} were changed while they were refined: run again when "
            "nothing writes to them"
        )
    made = report(refinement)
    # What tells that an image has labels already holds for the refined ones too.
    known = {k: v for k, v in (refinement.made or {}).items() if k in ("fingerprint", "missing")}
    if not refinement.interrupted:
        refinement.target.writer().finish()
    refinement.target.publish(
        {
            **provenance,
            **known,
            "n_objects": made.n_objects,
            "refined": {
                "labels": refinement.place,
                "fingerprint": refinement.fingerprint,
                "operations": [
                    o.model_dump(mode="json") for step in refinement.steps for o in step.operations
                ],
                "made": refinement.made,
            },
        }
    )
    write_bytes(refinement.ended, b"")
    return made


def report(refinement: Refinement) -> RefineReport:
    """What all steps did."""
    done: list[Done] = []
    numbers: list[tuple[int, int]] = []
    for number, step in enumerate(refinement.steps):
        folder = refinement.folder(number)
        if step.paints:
            marks = [refinement.painted(number, g) for g in range(len(refinement.groups))]
            gained = sum(int(json.loads(mark.read_bytes())) for mark in marks)
            done.append(_done(step.operations[0], gained, "pixels gained"))
            continue
        before, removed = selection.counts(folder)
        numbers.append((before, before - sum(removed)))
        for operation, n in zip(step.operations, removed, strict=False):
            done.append(_done(operation, n, "objects removed"))
        if len(removed) < len(step.operations):
            done.append(_done(step.operations[-1], before - sum(removed), "objects numbered"))
    return RefineReport(
        source_path=refinement.place,
        labels_path=str(refinement.target.published),
        n_before=numbers[0][0],
        n_objects=numbers[-1][1],
        operations=done,
    )


def _done(operation: Any, changed: int, unit: Any) -> Done:
    options = operation.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
    words = [operation.kind.replace("_", " ")]
    for name, value in options.items():
        words.append(
            name if value is True else value if isinstance(value, str) else f"{name} {value}"
        )
    return Done(operation=" ".join(words), changed=changed, unit=unit)


def _census_path(refinement: Refinement, step: int, group: int) -> Path:
    return refinement.folder(step) / "census" / f"{group}.npy"


def _atoms_path(refinement: Refinement, step: int, block: int) -> Path:
    return refinement.folder(step) / "atoms" / f"{block // 1000:06d}" / f"{block}.zip"


def _holes_path(refinement: Refinement, step: int, block: int) -> Path:
    return refinement.folder(step) / "holes" / f"{block // 1000:06d}" / f"{block}.zip"


def _look_for_atoms(refinement: Refinement, step: int, group: int, *, planewise: bool) -> None:
    blocks = [b for b in refinement.groups[group] if not _atoms_path(refinement, step, b).exists()]
    source = Source.of(refinement, step)
    shape = refinement.labels.spatial_shape
    for tile, labels in source.read_all(source.tiles(blocks)):
        atoms = find_atoms(labels, tile.core, shape, planewise=planewise)
        write_archive(_atoms_path(refinement, step, tile.index), atoms.arrays())


def _decide_holes(refinement: Refinement, step: int, *, planewise: bool) -> None:
    counts = refinement.blocks_per_axis
    n = int(np.prod(counts))
    for begin in range(0, len(refinement.blocks), n):

        def load(block: int, begin: int = begin) -> Atoms:
            return Atoms.of(Archive.open(_atoms_path(refinement, step, begin + block)))

        found = fill_holes.find_holes(load, counts, planewise=planewise)
        for block, (numbers, gets) in enumerate(found):
            path = _holes_path(refinement, step, begin + block)
            write_archive(path, {"numbers": numbers, "gets": gets})


def _read_holes(refinement: Refinement, step: int, block: int) -> fill_holes.Holes:
    numbers, gets = Archive.open(_holes_path(refinement, step, block)).read("numbers", "gets")
    return numbers, gets


def _create(refinement: Refinement, path: Path, dtype: np.dtype[Any]) -> None:
    """The array that holds the labels between two steps; a block is a file of it."""
    level, axes = refinement.target.levels[0], refinement.target.axes
    unit = refinement.target.plan.unit
    ones = (1,) * (len(level.shape) - len(unit))
    zarr.create_array(
        str(path),
        shape=level.shape,
        dtype=dtype,
        chunks=level.chunks,
        shards=(*ones, *unit) if unit != level.chunks[-len(unit) :] else None,
        compressors=ZstdCodec(level=1),
        fill_value=0,
        zarr_format=3,
        dimension_names=list(axes),
        config={"write_empty_chunks": False},
    )
