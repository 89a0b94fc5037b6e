"""Batches that failed: which tiles are missing, why, and whether the run may go on without them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import KilledWorker
from prefect.runtime import deployment, flow_run

from cytopave.engine.errors import OutOfMemoryError, TileError
from cytopave.engine.overtime import overdue
from cytopave.engine.report import Missing
from cytopave.engine.segment import too_late

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.planning.plan import Plan

_SHOWN = 5


def missing_tiles(plan: Plan, failures: Mapping[int, Exception]) -> list[Missing]:
    """The unfinished tiles of the batches that failed, in the order of their numbers.

    Args:
        plan: The run.
        failures: What ended each batch, by its number.
    """
    found = []
    for batch, error in failures.items():
        # A tile that was ended for its time may have taken the last worker that could have said so.
        late = overdue(plan.root, plan.batches[batch])
        causes = {tile: too_late(plan, tile, where) for tile, where in late.items()}
        causes |= error.tiles if isinstance(error, TileError | OutOfMemoryError) else {}
        for index in plan.batches[batch]:
            if plan.scratch.has(index):
                continue
            tile = plan.grid[index]
            cause = causes.get(index) or _why(error)
            found.append(
                Missing(
                    tile=index,
                    time=tile.time,
                    start=tile.core.start,
                    stop=tile.core.stop,
                    why=cause.removeprefix(f"{tile}: "),
                )
            )
    return sorted(found, key=lambda missing: missing.tile)


def failed_run(plan: Plan, failures: Mapping[int, Exception]) -> TileError:
    """The error that ends a run of which batches failed; it names the first of them."""
    named = [
        str(error) if isinstance(error, TileError) else f"{plan.batch_name(batch)}: {_why(error)}"
        for batch, error in sorted(failures.items())
    ]
    return TileError(
        f"{len(failures)} of {len(plan.batches)} batches failed, the others are finished and kept; "
        f"the same command tries only these again. {'; '.join(named[:_SHOWN])}"
    )


def retry_command() -> str:
    """What tries the failed tiles of the running flow run again, and nothing else."""
    if deployment.id:
        return f"prefect flow-run retry {flow_run.id}"
    program = Path(sys.argv[0]).name
    if program == "cytopave":
        return shlex.join([program, *sys.argv[1:]])
    return "segment_image(...) with the same parameters"


def completing_command() -> str:
    """What tries the tiles again that the running flow run left out, and replaces its labels."""
    if deployment.id:
        name = f"{flow_run.flow_name}/{deployment.name}"
        parameters = json.dumps({**flow_run.parameters, "overwrite": True})
        return shlex.join(["prefect", "deployment", "run", name, "--params", parameters])
    program = Path(sys.argv[0]).name
    if program == "cytopave":
        further = [] if "--overwrite" in sys.argv else ["--overwrite"]
        return shlex.join([program, *sys.argv[1:], *further])
    return "segment_image(..., overwrite=True) with the same parameters"


def _why(error: Exception) -> str:
    if isinstance(error, KilledWorker):
        times = error.allowed_failures + 1
        return (
            f"its worker died, {times} times in a row: look for what ended it (the host's memory?)"
        )
    return f"{type(error).__name__}: {error}"
