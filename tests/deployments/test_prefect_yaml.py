"""The deployments that prefect.yaml declares, looked at as Prefect does, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.exceptions import ParameterTypeError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from cytopave.engine.segmenters import Cellpose
from cytopave.flows import segment_image

FILE = Path(__file__).parents[2] / "prefect.yaml"
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_its_flow_is_found_and_takes_its_parameters(deployment: dict[str, Any]) -> None:
    flow: Any = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    (asked,) = parameter_schema(flow).required
    flow.validate_parameters({asked: "scan.zarr", **deployment["parameters"]})
    # Started by people or by programs, never by itself.
    assert not deployment.keys() & {"schedule", "schedules", "triggers"}
    assert deployment["work_pool"]["name"]


def test_the_main_flow_is_deployed_and_its_form_can_be_drawn() -> None:
    (deployment,) = (d for d in DEPLOYMENTS if d["name"] == "segment-image")
    flow: Any = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    assert flow is segment_image
    given = flow.validate_parameters({"image": "scan.zarr", **deployment["parameters"]})
    assert given["segmenter"] == Cellpose()
    assert parameter_schema(flow).required == ["image"]


def test_a_bad_parameter_is_refused_when_a_run_is_asked_for() -> None:
    with pytest.raises(ParameterTypeError, match="level"):
        segment_image.validate_parameters({"image": "scan.zarr", "level": "coarse"})
