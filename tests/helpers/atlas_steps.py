"""The steps of an atlas run without Prefect, on worker threads of this process."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distributed

from cytopave.engine.atlas.planner import make_plan
from cytopave.tasks.atlas.session import Session
from cytopave.tasks.atlas.steps import STEPS
from cytopave.tasks.atlas.write import write_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cytopave.engine.atlas.parameters import Counts, Intensities

PLENTY = 2**40


@contextmanager
def threads(n: int = 2) -> Iterator[distributed.Client]:
    """A client of workers in this process: starts in a tenth of a second."""
    with (
        distributed.LocalCluster(
            n_workers=n, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def plan_of(store: Path, profile: Counts | Intensities, **options: Any) -> Any:
    """A plan, as the flow would make it."""
    request: dict[str, Any] = {
        "output": str(store.parent / "out.zarr"),
        "overwrite": False,
        "provider": "scanpy",
        "block_rows": None,
        "unique_names": False,
        "scratch": None,
        "gpu_bytes": 0,
        "worker_bytes": PLENTY,
    }
    return make_plan(str(store), profile=profile, **(request | options))


def take_steps(
    client: distributed.Client, store: Path, profile: Counts | Intensities, **options: Any
) -> Session:
    """Take all steps, writing included."""
    plan = plan_of(store, profile, **options)
    session = Session(plan, plan.save(), client)
    for step in plan.steps[:-1]:
        STEPS[step](session)
    write_output(session)
    return session
