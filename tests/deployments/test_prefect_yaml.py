"""The deployments that prefect.yaml declares, looked at as Prefect does, without a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.exceptions import ParameterTypeError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.templating import apply_values

from cytopave.engine.segmenters import Cellpose
from cytopave.flows import (
    clean_scratch,
    convert_images,
    measure_cells,
    preprocess_atlas,
    refine_labels,
    relate_labels,
    segment_image,
    segment_plate,
    sweep_images,
)

# What has to be said at each run of those that are started by hand.
BY_HAND: dict[str, dict[str, Any]] = {
    "segment-image": {"image": "scan.zarr"},
    "segment-plate": {"plate": "plate.zarr"},
    "measure-cells": {"image": "scan.zarr"},
    "refine-labels": {"image": "scan.zarr", "operations": [{"kind": "expand", "distance": 3}]},
    "relate-labels": {"image": "scan.zarr", "child": "nuclei", "parent": "cells"},
    "convert-images": {"sources": ["scan.tif"]},
}
ROOT = Path(__file__).parents[2]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYMENTS: dict[str, dict[str, Any]] = {d["name"]: d for d in FILE["deployments"]}
FLOWS: dict[str, Any] = {
    "segment-image": segment_image,
    "segment-plate": segment_plate,
    "sweep-images": sweep_images,
    "clean-scratch": clean_scratch,
    "measure-cells": measure_cells,
    "refine-labels": refine_labels,
    "relate-labels": relate_labels,
    "convert-images": convert_images,
    "preprocess-atlas": preprocess_atlas,
}


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A deployment, with the variables of the environment put in."""
    monkeypatch.setenv("IMAGES_FOLDER", "/images")
    filled: dict[str, Any] = apply_values(DEPLOYMENTS[request.param], {})
    return filled


def test_there_is_one_a_flow() -> None:
    assert DEPLOYMENTS.keys() == FLOWS.keys()


def test_its_flow_is_found_and_takes_its_parameters(deployment: dict[str, Any]) -> None:
    flow: Any = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    assert flow is FLOWS[deployment["name"]]
    asked = BY_HAND.get(deployment["name"], {})
    flow.validate_parameters({**asked, **deployment["parameters"]})
    # What nobody fills in at each run has to be there: schedules cannot be asked.
    required = set(parameter_schema(flow).required)
    assert required == {*asked, *(required & deployment["parameters"].keys())}
    assert deployment["work_pool"]["name"] == "cytopave"
    assert "cytopave" in deployment["tags"]


def test_nothing_starts_by_itself(deployment: dict[str, Any]) -> None:
    assert not deployment.keys() & {"schedule", "triggers"}
    schedules = deployment.get("schedules", [])
    assert bool(schedules) == (deployment["name"] not in BY_HAND)
    for schedule in schedules:
        timing = {k: schedule[k] for k in ("cron", "timezone")}
        # Prefect's own check of the expression and the zone.
        made = DeploymentScheduleCreate(schedule=timing, active=schedule["active"])
        assert made.active is False


def test_how_many_run_at_once(deployment: dict[str, Any]) -> None:
    by_cpu = ("measure-cells", "refine-labels", "relate-labels", "convert-images")
    if deployment["name"] in by_cpu:
        return
    limit = deployment["concurrency_limit"]
    assert limit["limit"] == 1
    ConcurrencyLimitStrategy(limit["collision_strategy"])
    # Images wait for their turn; a sweep that comes too early is not made up for.
    waits = limit["collision_strategy"] == "ENQUEUE"
    assert waits == (deployment["name"] in ("segment-image", "segment-plate"))


def test_a_sweep_starts_the_other_deployment() -> None:
    flow, name = DEPLOYMENTS["sweep-images"]["parameters"]["deployment"].split("/")
    assert (flow, name) == (segment_image.name, "segment-image")


def test_the_settings_of_runs_are_ones_that_prefect_has(deployment: dict[str, Any]) -> None:
    from prefect.settings import Settings

    env = deployment["work_pool"]["job_variables"]["env"]
    assert all(isinstance(value, str) for value in env.values())
    settings = Settings()
    assert env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"].isdigit()
    assert settings.flows.heartbeat_frequency is not None
    assert env["PREFECT_LOGGING_EXTRA_LOGGERS"] == "cytopave"
    assert settings.logging.extra_loggers is not None


def test_the_form_of_the_main_flow_can_be_drawn() -> None:
    given = segment_image.validate_parameters(
        {"image": "scan.zarr", **DEPLOYMENTS["segment-image"]["parameters"]}
    )
    assert given["segmenter"] == Cellpose()
    assert parameter_schema(segment_image).required == ["image"]


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_every_parameter_is_described(flow: Any) -> None:
    schema = parameter_schema(flow)
    for name, field in schema.properties.items():
        assert field.get("description"), name
        assert ("default" in field) == (name not in schema.required), name


def test_a_bad_parameter_is_refused_when_a_run_is_asked_for() -> None:
    with pytest.raises(ParameterTypeError, match="level"):
        segment_image.validate_parameters({"image": "scan.zarr", "level": "coarse"})


def test_the_automations_are_ones_that_prefect_takes() -> None:
    content = yaml.safe_load((ROOT / "deployments" / "automations.yaml").read_text())
    (made,) = (AutomationCore.model_validate(a) for a in content["automations"])
    assert isinstance(made.trigger, EventTrigger)
    heartbeat = FILE["definitions"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]
    assert made.trigger.within.total_seconds() >= 3 * int(heartbeat)


def test_the_settings_that_the_manual_names_exist() -> None:
    """Prefect passes over a variable that it does not know."""
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_settings_fields

    known = {name.upper() for name in _get_settings_fields(Settings)}
    text = "".join(p.read_text() for p in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    named = set(re.findall(r"PREFECT_[A-Z_]+[A-Z]", text))
    assert "PREFECT_SERVER_DATABASE_CONNECTION_URL" in named
    assert named <= known
