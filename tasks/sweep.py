"""What a sweep does about each image: which runs there are already, and starting another one."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterIdempotencyKey,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for
from pydantic import BaseModel, ConfigDict

from cytopave.blocks.images import local_path
from cytopave.engine.errors import PlanError, UserError
from cytopave.engine.omezarr.folders import absolute
from cytopave.engine.sweep import Candidate, candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefect.client.schemas.objects import FlowRun

_UNDER_WAY = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]
_PAGE = 200
ATTEMPTS = 3
"""Runs of the same image with the same parameters that are started although each crashed."""


class Place(NamedTuple):
    """Labels that a run makes: of which image, under which name, in which store if one is named."""

    image: str
    name: str
    output: str | None

    @classmethod
    def of(cls, image: str, name: str, output: str | None) -> Place:
        """The same for every way to write a path."""
        return cls(_address(image), name, _address(output) if output else None)


def _address(url: str) -> str:
    """A folder of a local store by its path; what names nothing (any more) as it is."""
    with suppress(UserError):
        url = local_path(url) or url
    return absolute(url)


class Swept(BaseModel):
    """What a sweep did about one image.

    Attributes:
        image: URL of the image.
        state: What was known of its labels, see `cytopave.engine.sweep.State`.
        action: What was done: nothing, a run started, or made in this process; or why not.
        run: Id of the flow run that makes the labels.
        link: Where the UI shows that run.
        note: What else is to be said.
    """

    model_config = ConfigDict(frozen=True)

    image: str
    state: str
    action: Literal["none", "start", "started", "made", "failed", "under way", "failed before"] = (
        "none"
    )
    run: str | None = None
    link: str | None = None
    note: str = ""


@task(name="find_images", persist_result=False, task_run_name="find images in {folder}")
def find_images(folder: str, **options: Any) -> list[Candidate]:
    """All images of a folder; see `cytopave.engine.sweep.candidates`."""
    return list(candidates(folder, **options))


def runs_under_way(flow_name: str) -> dict[Place, FlowRun]:
    """Runs of the segmentation flow that have not ended, by the labels that they make.

    Ask before looking at images: labels that appear meanwhile are then still under way.
    """
    found: dict[Place, FlowRun] = {}
    seen = 0
    with get_client(sync_client=True) as client:
        while True:
            page = client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
                flow_run_filter=FlowRunFilter(
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNDER_WAY))
                ),
                limit=_PAGE,
                offset=seen,
            )
            seen += len(page)
            for run in page:
                given = run.parameters
                if "image" in given:
                    place = Place.of(
                        given["image"], given.get("name", "cells"), given.get("output")
                    )
                    found[place] = run
            if len(page) < _PAGE:
                return found


def start(
    image: Candidate, deployment: str, parameters: dict[str, Any], *, retry_failed: bool, dry: bool
) -> Swept:
    """Start a run of a deployment, unless there was one that ended for good.

    The key of a run is made of the image's content and all parameters: sweeps at the same moment
    start one run between them. Where runs of that key crashed, another one is started, three in
    all. One that failed would fail again: it is left to people.

    Args:
        image: What to segment.
        deployment: As ``flow/deployment``.
        parameters: Of the flow, as JSON values, without the image.
        retry_failed: Start another run also where the last one failed or was cancelled.
        dry: Only say what would be done.
    """
    about = {"image": image.url, "state": image.state}
    given = {"image": image.url, **parameters}
    earlier = _earlier(image, given)
    if earlier and not _may_start_again(earlier, retry_failed=retry_failed):
        last = earlier[-1]
        note = f"{last.state_name}: retry that run, or change the parameters"
        return Swept(**about, action="failed before", **reference(last), note=note)
    if dry:
        return Swept(**about, action="start")
    run: Any = run_deployment(  # a coroutine only in asynchronous code
        deployment,
        parameters=given,
        timeout=0,
        tags=["cytopave", f"sweep:{flow_run.name}"],
        idempotency_key=_key(image, given, len(earlier)),
    )
    return Swept(**about, action="started", **reference(run))


def reference(run: FlowRun) -> dict[str, str | None]:
    """The fields of `Swept` that name a run."""
    return {"run": str(run.id), "link": url_for("flow-run", run.id)}


def check_deployment(name: str) -> None:
    """Refuse a deployment that is not there.

    Raises:
        PlanError: There is none of that name.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(name)
        except (ObjectNotFound, ValueError):
            raise PlanError(
                f"there is no deployment {name!r}: write flow/deployment, such as "
                "segment-image/segment-image, after `prefect deploy --all`"
            ) from None


def show_sweep(rows: Sequence[Swept]) -> None:
    """A table of the images with links to their runs."""
    lines = ["| image | labels | run | |", "| --- | --- | --- | --- |"]
    for row in rows:
        run = f"[{row.action}]({row.link})" if row.link else row.action
        cells = (f"`{row.image}`", row.state, run, row.note.replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) if rows else "No images."
    create_markdown_artifact(text, key="sweep", description="Images and the runs that label them")


def _key(image: Candidate, parameters: dict[str, Any], attempt: int) -> str:
    facts = json.dumps([image.fingerprint, parameters], sort_keys=True)
    return f"cytopave-{hashlib.sha256(facts.encode()).hexdigest()}-{attempt}"


def _earlier(image: Candidate, parameters: dict[str, Any]) -> list[FlowRun]:
    """Runs for this content with these parameters, the oldest first."""
    keys = [_key(image, parameters, attempt) for attempt in range(_PAGE)]
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys))
        )
    return sorted(runs, key=lambda run: keys.index(str(run.idempotency_key)))


def _may_start_again(earlier: Sequence[FlowRun], *, retry_failed: bool) -> bool:
    last = earlier[-1].state_type
    if last == StateType.COMPLETED:  # and its labels were deleted since
        return True
    return retry_failed or (last == StateType.CRASHED and len(earlier) < ATTEMPTS)
