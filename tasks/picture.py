"""A small picture of the result, for the run's page."""

from __future__ import annotations

import base64
import logging

from prefect import task
from prefect.artifacts import create_markdown_artifact

from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.plan import Plan
from cytopave.engine.show.detail import draw_detail, jpeg, pixels_to_read
from cytopave.engine.show.legible import legible
from cytopave.engine.show.overlay import draw_overlay

_SIDE = 512
_MOST_PIXELS = 1 << 24
"""What is read for the picture of the whole: a large image without coarse levels gets none."""

_log = logging.getLogger(__name__)


@task(name="draw_picture", persist_result=False, task_run_name="draw picture")
def draw_picture(plan_path: str) -> dict[str, bytes]:
    """JPEG pictures of the published labels: the middle in full resolution, and the whole image.

    The whole is left out where no level of the pyramid is small enough.
    """
    plan = Plan.load(plan_path)
    image, target = legible(plan.image), plan.target
    labels = open_image(str(target.published), storage_options=target.storage_options)
    pictures = {}
    if pixels_to_read(image, labels, side=_SIDE) <= _MOST_PIXELS:
        whole = draw_overlay(image, labels, channels=plan.channels, side=_SIDE)
        pictures["The whole image"] = jpeg(whole)
    if max(labels.spatial_shape[-2:]) > _SIDE:
        # Found out when the run was planned, if the method needs it.
        known = getattr(plan.segmenter, "intensity", None)
        detail = draw_detail(image, labels, channels=plan.channels, ranges=known, side=_SIDE)
        pictures["Its middle, pixel by pixel"] = jpeg(detail)
    return pictures


def show_picture(plan_path: str) -> None:
    """Draw on a worker, and put the pictures into the UI.

    Prefect's UI shows pictures of its artifacts by their URL; one that holds its own data needs no
    server. The labels are published by now: a picture that cannot be drawn is no failure.
    """
    try:
        pictures = draw_picture.submit(plan_path).result()
    except Exception:  # noqa: BLE001  whatever it is, the labels are there
        _log.warning("The picture for the run's page could not be drawn", exc_info=True)
        return
    parts = [
        f"**{title}**\n\n![{title}](data:image/jpeg;base64,{base64.b64encode(data).decode()})"
        for title, data in pictures.items()
    ]
    create_markdown_artifact(
        "\n\n".join(parts), key="picture", description="Outlines of all objects"
    )
