"""A whole run in one process: for images of few tiles, of which many are worked on side by side."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cytopave.engine.lazy import grouped
from cytopave.engine.merge import stages
from cytopave.engine.planning import skipping
from cytopave.engine.report import Report, Stage
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.segment import segment_tiles
from cytopave.engine.tables import stages as tables
from cytopave.engine.tables.planner import plan_run
from cytopave.engine.tables.target import table_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.tables.target import TableTarget

_TILES_AT_ONCE = 512  # whose links are in memory together; as many blocks are painted together


def run_whole(plan: Plan, facts: Mapping[str, Any], *, measure: bool = False) -> Report:
    """Segment, merge, measure and publish.

    Finished tiles are kept if it fails, and not computed again.

    Args:
        plan: The run.
        facts: What the label image's attributes shall say of the plan.
        measure: Whether to write a table of the objects.

    Raises:
        UserError: The output cannot be written, or the function returned no label image.
        TileError: Tiles failed.
        OutOfMemoryError: The GPU's memory did not suffice.
    """
    clock = _Clock()
    with occupied(plan.root, remove=True), claimed(plan.root, plan.target.published):
        plan.save()
        with clock.stage("foreground"):
            skipped = _skip(plan)
        reused = len(plan.scratch.finished()) - skipped
        with clock.stage("segment", units=len(plan.grid) - skipped - reused, unit="tiles"):
            for batch in plan.batches:
                segment_tiles(plan, batch)
        with clock.stage("merge"):
            counts = _merge(plan)
            blocks = grouped(plan.target.blocks(), -(-len(plan.target.blocks()) // _TILES_AT_ONCE))
            for group in blocks:
                stages.write_blocks(plan, group)
            seams = stages.count_seams(plan, blocks)
        plan.target.writer().finish()
        table = None
        if measure:
            with clock.stage("measure"):
                table = _measure(plan, facts)
        report = Report(
            image=plan.image.url,
            labels_path=str(plan.target.published),
            table_path=str(table.published) if table else None,
            n_tiles=len(plan.grid),
            n_skipped=skipped,
            n_reused=reused,
            digest=plan.digest,
            stages=clock.stages,
            seams=seams,
            **counts,
        )
        plan.target.publish(report.provenance(dict(facts)))
        if table:
            table.publish()
    return report


def finished_report(plan: Plan, *, measure: bool = False) -> Report | None:
    """The report of an earlier run that published the very same labels; None if none did.

    Args:
        plan: The run.
        measure: Whether a table has to be there as well.
    """
    from cytopave.engine.omezarr.labels import open_labels
    from cytopave.engine.omezarr.publish import PROVENANCE

    target = plan.target
    if not target.is_published:
        return None
    found = open_labels(target.url, target.name, storage_options=target.storage_options)
    made = found.attributes[PROVENANCE]
    if made.get("merge") != plan.merge.model_dump(mode="json"):
        return None
    if not measure:
        return Report.from_provenance(made, str(target.published))
    table = table_of_run(target, plan.merge).published
    if not table.exists():
        return None
    report = Report.from_provenance(made, str(target.published))
    return report.model_copy(update={"table_path": str(table)})


def _skip(plan: Plan) -> int:
    if plan.foreground is None:
        return 0
    groups = [tuple(plan.foreground.blocks())]
    skipping.look(plan, groups[0])
    found = skipping.join(plan, groups)
    skipping.skip(plan, range(len(plan.grid)))
    return len(found) - int(found.sum())


def _measure(plan: Plan, facts: Mapping[str, Any]) -> TableTarget:
    measurement = plan_run(plan)
    measurement.save()
    for group in range(len(measurement.groups)):
        tables.measure_group(measurement, group)
    tables.write_table(measurement, {k: facts[k] for k in ("version", "created")})
    return measurement.target


def _merge(plan: Plan) -> dict[str, int]:
    groups = grouped(range(len(plan.grid)), -(-len(plan.grid) // _TILES_AT_ONCE))
    for group in groups:
        stages.scan_tiles(plan, group)
    result = stages.resolve_run(plan, groups)
    plan.target.create(result.final.dtype)
    return {name: getattr(result, name) for name in ("n_objects", "n_joined", "n_suspects")}


class _Clock:
    """Wall time of each stage."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str, **facts: Any) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.stages.append(Stage(name=name, seconds=seconds, **facts))
