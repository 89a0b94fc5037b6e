"""The flow that deletes what runs that were given up leave behind."""

from __future__ import annotations

from pathlib import Path

from prefect import get_run_logger
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from cytopave.blocks.images import folder_url
from cytopave.engine.errors import OutputError
from cytopave.engine.housekeeping import Leftover, leftovers
from cytopave.engine.settings import load_settings
from cytopave.tasks.embedded import embedded_flow
from cytopave.tasks.report import show_cleaning

_DAY = 24 * 60 * 60


class Cleaned(BaseModel):
    """One thing that a run left behind, and what was done about it.

    Attributes:
        kind: What it is.
        path: Where it lay.
        size: Bytes.
        age_days: Days since it changed.
        action: What was done, or why nothing was.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    path: str
    size: int
    age_days: float
    action: str


class Cleaning(BaseModel):
    """What was found and done.

    Attributes:
        freed: Bytes that were deleted, or would be.
        dry_run: Whether nothing was deleted.
        found: One entry a leftover.
    """

    model_config = ConfigDict(frozen=True)

    freed: int
    dry_run: bool
    found: list[Cleaned]


@embedded_flow(name="clean-scratch")
def clean_scratch(
    folders: list[str],
    *,
    scratch: list[str] = [],  # noqa: B006
    older_than_days: NonNegativeFloat = 14.0,
    dry_run: bool = False,
) -> Cleaning:
    """Delete scratch folders, unpublished labels and half-written files that no run uses.

    Args:
        folders: Folders of images or of labels, searched throughout: paths or URLs.
        scratch: Scratch folders that are not beside images.
        older_than_days: Keep what changed more recently.
        dry_run: Delete nothing, only report.

    Raises:
        ImageError: A folder is not there.
        OutputError: Something could not be deleted; the rest is done.
    """
    named = [Path(path) for path in scratch]
    if (own := load_settings().scratch) is not None:
        named.append(own)
    rows: list[Cleaned] = []
    freed, problems = 0, []
    for leftover in leftovers([folder_url(f) for f in folders], scratch=named):
        action = _dispose(leftover, older_than_days * _DAY, dry=dry_run)
        if action in ("deleted", "to be deleted"):
            freed += leftover.size
        elif action.startswith("failed"):
            problems.append(f"{leftover.folder}: {action}")
        rows.append(
            Cleaned(
                kind=leftover.kind,
                path=str(leftover.folder),
                size=leftover.size,
                age_days=leftover.age / _DAY,
                action=action,
            )
        )
    report = Cleaning(freed=freed, dry_run=dry_run, found=rows)
    show_cleaning([row.model_dump() for row in rows], freed=freed, dry_run=dry_run)
    get_run_logger().info("%.1f MiB %s", freed / 2**20, "to be freed" if dry_run else "freed")
    if problems:
        raise OutputError(f"{len(problems)} could not be deleted: {'; '.join(problems[:5])}")
    return report


def _dispose(leftover: Leftover, limit: float, *, dry: bool) -> str:
    if leftover.in_use:
        return "in use"
    if leftover.age < limit:
        return "too young"
    if dry:
        return "to be deleted"
    try:
        return "deleted" if leftover.remove() else "in use"
    except OSError as error:
        return f"failed: {error}"
