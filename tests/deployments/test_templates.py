"""Job templates of work pools, against the types that they are for, and the container file."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import re
import shlex
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from jsonschema import Draft202012Validator
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.templating import find_placeholders
from prefect.workers.process import ProcessJobConfiguration

ROOT = Path(__file__).parents[2]
TEMPLATES = {p.stem: json.loads(p.read_text()) for p in (ROOT / "deployments/templates").iterdir()}
TYPES = {"process": "process", "slurm": "process", "docker": "docker", "kubernetes": "kubernetes"}
NEWER = {"docker": {"container_create_kwargs"}}
"""Of prefect-docker 0.7.4; Prefect 3.9 carries descriptions of older ones."""


def defaults_of(kind: str) -> dict[str, Any]:
    """The template that Prefect itself has for a type of work pool."""
    file = "server/api/collections_data/views/aggregate-worker-metadata.json"
    packages = json.loads(importlib.resources.files("prefect").joinpath(file).read_text())
    found: dict[str, Any] = next(types[kind] for types in packages.values() if kind in types)
    return dict(found["default_base_job_configuration"])


def placeholders(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(placeholders, value.values()))
    if isinstance(value, list):
        return set().union(*map(placeholders, value))
    return {p.name for p in find_placeholders(value)} if isinstance(value, str) else set()


@pytest.mark.parametrize("name", TYPES)
def test_it_fits_the_type_of_work_pool(name: str) -> None:
    template, kind = TEMPLATES[name], TYPES[name]
    job, variables = template["job_configuration"], template["variables"]
    default = defaults_of(kind)["job_configuration"]
    assert job.keys() - default.keys() <= NEWER.get(kind, set())
    # Everything that can be said is used, and everything that is used can be said.
    # (The variables of env are added to those that are written there.)
    assert placeholders(job) | {"env"} == variables["properties"].keys()
    Draft202012Validator.check_schema(variables)
    checks = Draft202012Validator(variables)
    values = {n: p["default"] for n, p in variables["properties"].items() if "default" in p}
    assert not [*checks.iter_errors(values)]
    for field in variables["properties"].values():
        assert field["title"]
        assert field["description"].endswith(".")


def configured(name: str, **values: Any) -> ProcessJobConfiguration:
    """What a worker makes of a template for processes."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):  # is not asked
        making = ProcessJobConfiguration.from_template_and_values(TEMPLATES[name], values)
        job: ProcessJobConfiguration = asyncio.run(making)
        job.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="a-run"))
    return job


def test_settings_reach_a_process() -> None:
    given = {"scratch": "/scratch", "gpus": "2,3", "env": {"CYTOPAVE_RETRIES": "9"}}
    job = configured("process", **given)
    env = job.env
    assert (env["CYTOPAVE_SCRATCH"], env["CUDA_VISIBLE_DEVICES"]) == ("/scratch", "2,3")
    assert (env["CYTOPAVE_RETRIES"], env["CYTOPAVE_LOG_LEVEL"]) == ("9", "INFO")
    assert env["PREFECT_LOGGING_EXTRA_LOGGERS"] == "cytopave"
    assert job.command is not None
    assert job.command.endswith("-m prefect.engine")


def test_what_is_not_said_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CYTOPAVE_SCRATCH", "CYTOPAVE_GPU_MEMORY_GB"):
        monkeypatch.delenv(name, raising=False)
    job = configured("process")
    assert not {"CUDA_VISIBLE_DEVICES", "CYTOPAVE_SCRATCH", "CYTOPAVE_GPU_MEMORY_GB"} & set(job.env)


def test_slurm_gets_a_command_that_it_understands() -> None:
    options = {"srun_options": "--partition=gpu --gres=gpu:4", "python": "/opt/env/bin/python"}
    job = configured("slurm", **options)
    assert shlex.split(str(job.command)) == [
        *("srun", "--ntasks=1", "--job-name=cytopave", "--cpus-per-task=16", "--mem=64G"),
        *("--time=08:00:00", "--partition=gpu", "--gres=gpu:4"),
        *("/opt/env/bin/python", "-m", "prefect.engine"),
    ]


def test_containers_get_gpus() -> None:
    docker = TEMPLATES["docker"]["variables"]["properties"]
    assert docker["device_requests"]["default"] == [{"count": -1, "capabilities": [["gpu"]]}]
    pod = TEMPLATES["kubernetes"]["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "{{ gpus }}"
    assert TEMPLATES["kubernetes"]["variables"]["properties"]["gpus"]["default"] == "1"
    # The command is a list in Kubernetes, which the worker makes of args.
    assert container["args"] == "{{ command }}"
    default = defaults_of("kubernetes")["job_configuration"]["job_manifest"]
    given = TEMPLATES["kubernetes"]["job_configuration"]["job_manifest"]
    assert given.keys() == default.keys()
    assert default["spec"]["template"]["spec"].keys() <= pod.keys()
    assert default["spec"]["template"]["spec"]["containers"][0].keys() <= container.keys()


def test_the_container_file_copies_what_there_is() -> None:
    text = (ROOT / "deployments/containers/Containerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    sources = {source for line in copied for source in line}
    assert all((ROOT / source).exists() for source in sources)
    assert {"flows", "tasks", "engine", "blocks", "deployments", "pyproject.toml"} <= sources
    # The build sees them.
    seen = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sources <= set(seen)
    assert "--require-hashes --requirement requirements/cuda13.txt" in text
    assert 'ENTRYPOINT ["tini", "-g", "--"]' in text
