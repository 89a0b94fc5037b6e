"""The task that decides everything about a run before its first tile."""

from __future__ import annotations

from typing import Any

from prefect import task

from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.plan import Plan
from cytopave.engine.planning.planner import make_plan


@task(name="plan_tiles", persist_result=False, task_run_name="plan")
def plan_tiles(image: str, *, budget: Budget, workers: int, request: dict[str, Any]) -> Plan:
    """Make the plan of a run; nothing is written.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
    """
    return make_plan(image, budget=budget, workers=workers, **request)
