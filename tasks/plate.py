"""The task that segments the images of one well."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from prefect import task

from cytopave.engine.errors import CytopaveError, OutOfMemoryError
from cytopave.engine.omezarr.plate import Well
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.plate_report import FieldResult, WellResult
from cytopave.engine.whole import finished_report, run_whole
from cytopave.tasks.publish import plan_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)


@task(name="segment_well", task_run_name="segment well {well.name}", persist_result=False)
def segment_well(well: Well, *, plate: str, request: dict[str, Any]) -> WellResult:
    """Segment, merge and publish the images of a well, one after another.

    An image that fails does not stop the others. Published labels of the very same request are
    not made again.

    Args:
        well: The well.
        plate: URL of the plate.
        request: Arguments of `make_plan`, the budget of a worker among them.

    Raises:
        OutOfMemoryError: The GPU's memory did not suffice for some image; the others are
            finished, and Prefect tries again later.
    """
    results, exhausted = [], []
    for field in well.fields:
        try:
            results.append(_segment_field(field, f"{plate}/{field}", request))
        except OutOfMemoryError as error:
            exhausted.append(f"{field}: {error}")
        except Exception as error:  # noqa: BLE001  whatever it was is this image's outcome
            kind = "" if isinstance(error, CytopaveError) else f"{type(error).__name__}: "
            results.append(FieldResult(field=field, error=f"{kind}{error}"))
            _log.warning("%s failed: %s%s", field, kind, error, exc_info=True)
    if exhausted:
        raise OutOfMemoryError("; ".join(exhausted))
    return WellResult(well=well.name, fields=results, missing=list(well.missing))


def failed_well(well: Well, error: Exception) -> WellResult:
    """The result of a well whose task failed, whatever it had finished."""
    why = f"{type(error).__name__}: {error}"
    fields = [FieldResult(field=field, error=why) for field in well.fields]
    return WellResult(well=well.name, fields=fields, missing=list(well.missing))


def _segment_field(field: str, image: str, request: Mapping[str, Any]) -> FieldResult:
    measure = bool(request["measure"])
    plan = make_plan(image, **{**request, "overwrite": True})
    before = finished_report(plan, measure=measure)
    if before is not None:
        return FieldResult(field=field, report=before, reused=True)
    # Labels of this very request without their table: its run was ended between the two.
    if not request["overwrite"] and finished_report(plan) is None:
        plan = make_plan(image, **{**request, **plan.settled})  # refuses a name that is taken
    report = run_whole(plan, plan_facts(plan), measure=measure)
    return FieldResult(field=field, report=report)
