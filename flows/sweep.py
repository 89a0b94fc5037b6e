"""The flow that keeps a folder or bucket labelled: one run for each image that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.exceptions import ParameterTypeError
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from cytopave.blocks.cluster import resolve_cluster
from cytopave.blocks.images import ImageStore, folder_url, local_path
from cytopave.engine.errors import PlanError, SweepError
from cytopave.engine.segmenters import Cellpose, Segmenter
from cytopave.flows.segment import segment_image
from cytopave.tasks.embedded import embedded_flow
from cytopave.tasks.progress import progress
from cytopave.tasks.sweep import (
    Place,
    Swept,
    check_deployment,
    find_images,
    reference,
    runs_under_way,
    show_sweep,
    start,
)

if TYPE_CHECKING:
    from prefect.client.schemas import FlowRun

    from cytopave.engine.report import Report
    from cytopave.engine.sweep import Candidate

_OWN = ("image", "name", "output", "overwrite", "segmenter")


class SweepReport(BaseModel):
    """What a sweep found and did.

    Attributes:
        folder: What was searched.
        images: One entry an image.
    """

    model_config = ConfigDict(frozen=True)

    folder: str
    images: list[Swept]

    @property
    def incomplete(self) -> bool:
        """Whether labels were made here from which tiles were left out."""
        return any(row.action == "made" and row.note for row in self.images)


def _run_name() -> str:
    folder = flow_run.parameters["folder"]
    url = str(getattr(folder, "url", folder))
    return f"{url.rstrip('/').rpartition('/')[2]} -> {flow_run.parameters['name']}"


@embedded_flow(name="sweep-images", flow_run_name=_run_name)
def sweep_images(
    folder: str | ImageStore,
    *,
    name: str = "cells",
    segmenter: Segmenter = Cellpose(),  # noqa: B008
    match: str = "*",
    output: str | None = None,
    parameters: dict[str, Any] = {},  # noqa: B006
    deployment: str | None = None,
    settled_seconds: NonNegativeFloat = 60.0,
    retry_failed: bool = False,
    dry_run: bool = False,
) -> SweepReport:
    """Segment every image of a folder that has no labels of that name, or changed since.

    May be repeated at any time, and at the same moment from several places: an image of which a
    run is under way gets no second one. With a deployment the runs are started and left to their
    work pool, whose limits hold; otherwise each image is a subflow of this run.

    Args:
        folder: Folder or bucket of images, searched throughout: a path, a URL, a part of a saved
            image store (store://NAME/folder), or an image store with its options and secrets.
        name: Name of the label images.
        segmenter: Method and its options.
        match: Shell pattern for the path of an image below the folder.
        output: Folder that gets a store of labels for each image; into the images if not given.
        parameters: Further parameters of segment-image, by name.
        deployment: Deployment that runs each image; here, one after the other, if not given.
        settled_seconds: Leave images that changed since so many seconds for the next sweep.
        retry_failed: Start anew where a deployment's run for the same pixels failed before.
        dry_run: Only say what would be started.

    Raises:
        UserError: The folder, the deployment or a parameter cannot be used.
        SweepError: Images failed that were segmented here; the others are done.
    """
    given = _given(segmenter, parameters)
    folder, output = folder_url(folder), local_path(output)
    if deployment is not None:
        check_deployment(deployment)
    under_way = runs_under_way(str(segment_image.name))
    images = find_images(
        folder,
        name=name,
        match=match,
        output=output,
        settled_seconds=settled_seconds,
        level=parameters.get("level", 0),
        axes=parameters.get("axes"),
    )
    rows: list[Swept] = []
    with progress("images", len(images), key="images") as advance:
        for image in images:
            wanted = {**given, "name": name, "overwrite": image.state == "changed"}
            if image.output:
                wanted["output"] = image.output
            run = under_way.get(Place.of(image.url, name, image.output))
            if run is not None or not image.wanted:
                rows.append(_left_alone(image, run))
            elif deployment is None:
                rows.append(_run_here(image, wanted, dry=dry_run))
            else:
                rows.append(
                    start(image, deployment, wanted, retry_failed=retry_failed, dry=dry_run)
                )
            advance(1)
    show_sweep(rows)
    if failed := [row for row in rows if row.action == "failed"]:
        shown = "; ".join(f"{row.image}: {row.note}" for row in failed[:5])
        raise SweepError(
            f"{len(failed)} of {len(rows)} images failed, the others are done. {shown}"
        )
    return SweepReport(folder=folder, images=rows)


def _given(segmenter: Segmenter, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that all runs share, as JSON values.

    Raises:
        PlanError: They are not those of the flow.
        ClusterError: They name a cluster that is not there.
    """
    if own := [key for key in parameters if key in _OWN]:
        raise PlanError(f"the sweep sets {own[0]!r} itself: leave it out of the further parameters")
    given = {**parameters, "segmenter": segmenter}
    try:
        checked = segment_image.validate_parameters({"image": "", **given})
    except ParameterTypeError as error:
        why = " ".join(str(error).split())
        raise PlanError(f"the further parameters are not those of segment-image: {why}") from None
    except TypeError as error:
        raise PlanError(f"segment-image has no such parameter: {error}") from None
    if "cluster" in parameters:
        resolve_cluster(checked["cluster"])
    encoded: dict[str, Any] = segment_image.serialize_parameters({k: checked[k] for k in given})
    return encoded


def _left_alone(image: Candidate, run: FlowRun | None) -> Swept:
    if run is None:
        return Swept(image=image.url, state=image.state, note=image.note)
    return Swept(image=image.url, state=image.state, action="under way", **reference(run))


def _run_here(image: Candidate, parameters: dict[str, Any], *, dry: bool) -> Swept:
    about = {"image": image.url, "state": image.state}
    if dry:
        return Swept(**about, action="start")
    state = segment_image(image.url, **parameters, return_state=True)
    run = {"run": str(state.state_details.flow_run_id)}
    if state.is_completed():
        made: Report = state.result()
        note = f"incomplete: {made.missing_note()}" if made.missing else ""
        return Swept(**about, action="made", **run, note=note)
    return Swept(**about, action="failed", **run, note=str(state.result(raise_on_failure=False)))
