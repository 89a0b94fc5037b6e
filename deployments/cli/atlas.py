"""``cytopave atlas``: the flow ``preprocess_atlas``, run in this process."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cytopave.deployments.cli.clusters import find_cluster
from cytopave.deployments.cli.console import say, write_facts, write_json, write_table
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, Flag, check_positive

if TYPE_CHECKING:
    from cytopave.engine.atlas.parameters import Counts, Intensities
    from cytopave.engine.atlas.report import AtlasReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is in the store, what is done with it, and where the result goes."""

    output: str | None = None
    """Path of the new store; intensities come back into their table where not given."""
    profile: Literal["counts", "intensities"] = "counts"
    """What X holds: counts of transcripts, or intensities of segmented cells."""
    set: Annotated[tuple[str, ...], Parameter(name="--set", show_default=False)] = ()
    """A step's option as step.option=value, the value as JSON or text, such as
    leiden.resolution=0.5; or step=null to leave a step out; repeatable."""
    provider: Literal["auto", "scanpy", "rapids"] = "auto"
    """Who does it; auto: rapids where the workers have it and a GPU."""
    overwrite: Flag = False
    """Replace what is there."""
    workers: int | None = None
    """Number of workers; one a GPU, or one a CPU core, where not given."""
    cluster: str = "auto"
    """auto, cpu, nvlink, capacity, a scheduler's address (tcp://...), or a saved block's name."""
    block_rows: int | None = None
    """Cells in a block; by their number of values where not given."""
    unique_names: Flag = False
    """Number names of cells or genes that come twice."""
    scratch: str | None = None
    """Folder for the steps' results that all workers share; beside the output where not given."""
    keep_scratch: Flag = False
    """Keep the steps' results: a run of other options continues at the first that they change."""


def atlas(
    store: str,
    /,
    *,
    analysis: Analysis = Analysis(),
    common: Common = Common(),  # noqa: B008
) -> None:
    """Analyse a matrix of cells of any size: metrics, components, clusters, and a map.

    Interrupted or failed, the same command resumes at the step that was not finished.

    Args:
        store: AnnData on Zarr, X by rows: a path or URL; or a table, IMAGE.zarr/tables/NAME.
        analysis: What is done, and where the result goes.
        common: Options of every command.
    """
    from cytopave.engine.atlas.planner import check_request

    check_positive(workers=analysis.workers, block_rows=analysis.block_rows)
    profile = build_profile(analysis.profile, analysis.set)
    request: dict[str, Any] = {
        "output": analysis.output,
        "overwrite": analysis.overwrite,
        "profile": profile,
    }
    check_request(store, **request)
    made = _run(store, request, analysis, common)
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        show(made)


def _run(store: str, request: dict[str, Any], analysis: Analysis, common: Common) -> AtlasReport:
    prepare_prefect(verbose=common.verbose)
    find_cluster(analysis.cluster)
    if sys.stderr.isatty():
        say("starting; this takes some seconds")
    from cytopave.flows import preprocess_atlas
    from cytopave.tasks.runner import embedded_api

    embedded_api()
    names = ("provider", "workers", "cluster", "block_rows", "unique_names", "scratch")
    options = {name: getattr(analysis, name) for name in (*names, "keep_scratch")}
    made: AtlasReport = preprocess_atlas(store, **request, **options)
    return made


def build_profile(kind: str, entries: tuple[str, ...]) -> Counts | Intensities:
    """The profile of a name, with options of its steps set.

    Raises:
        AtlasError: There is no such step or option, or a value does not fit.
    """
    from pydantic import TypeAdapter, ValidationError

    from cytopave.engine.atlas.parameters import Counts, Intensities, Profile
    from cytopave.engine.errors import AtlasError

    default = Counts() if kind == "counts" else Intensities()
    values = default.model_dump(mode="json")
    for entry in entries:
        key, equals, text = (part.strip() for part in entry.partition("="))
        if not key or not equals:
            raise AtlasError(f"--set {entry} is not understood: write step.option=value")
        _place(values, key.split("."), text)
    adapter: TypeAdapter[Counts | Intensities] = TypeAdapter(Profile)
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            known = ", ".join(_options(default, field))
            raise AtlasError(f"{kind} have no option {field}: those there are {known}") from None
        raise AtlasError(
            f"{kind} cannot have {field or '--set'}={first.get('input')!r}: {first['msg']}"
        ) from None


def _place(values: dict[str, Any], path: list[str], text: str) -> None:
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = {}  # a step that is left out unless something of it is set
        values = values[name]
    try:
        values[path[-1]] = json.loads(text)
    except ValueError:
        values[path[-1]] = text


def _options(profile: Counts | Intensities, field: str) -> list[str]:
    """Names beside a field."""
    from pydantic import BaseModel

    model: Any = type(profile)
    for name in field.split(".")[:-1]:
        kinds = [model.model_fields[name].annotation] if name in model.model_fields else []
        kinds = [k for kind in kinds for k in (kind, *getattr(kind, "__args__", ()))]
        models = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not models:
            return []
        model = models[0]
    return [name for name in model.model_fields if name != "kind"]


def show(made: AtlasReport) -> None:
    """Print where the result is, and how the run went."""
    facts: dict[str, object] = {
        "cells": f"{made.n_cells} of {made.n_cells_read}",
        "genes" if made.n_variable else "columns": f"{made.n_genes} of {made.n_genes_read}",
    }
    if made.n_variable:
        facts["variable"] = f"{made.n_variable} genes"
    facts["components"] = made.n_comps
    if made.n_clusters:
        facts["clusters"] = made.n_clusters
    facts["provider"] = made.provider
    facts["columns of" if made.in_place else "output"] = made.output
    write_facts(facts)
    write_table(made.stage_rows(), title="Steps")
