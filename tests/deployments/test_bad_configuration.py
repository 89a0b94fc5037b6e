"""Every wrong preset, key, unit and place: one clear line on stderr, status 2, and at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ops_flows
import pytest
import stores
from commands import Ended
from prefect.settings import PREFECT_API_URL, temporary_settings

from cytopave.blocks import CellposeModel, Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from commands import Command

THRESHOLD = ("--segmenter", "threshold")


def says(ended: Ended, text: str) -> None:
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert text in ended.err
    assert ended.err.count("\n") == 1


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("--cluster", "nvlink"), "'nvlink' needs an NVIDIA GPU and none is visible"),
        (("--cluster", "capacity"), "'capacity' needs an NVIDIA GPU"),
        (("--cluster", "nvlnk"), "no cluster 'nvlnk' (did you mean 'nvlink'?): use one of auto,"),
        (("--cluster", "inproc://10.0.0.1/1"), "inside one process"),
        (("--cluster", "tcp://scheduler"), "write tcp://host:port"),
        (("--cluster", "http://scheduler:8786"), "write tcp://host:port"),
        (("--workers", "1.5"), "--workers 1.5 must be a whole number"),
        (("--workers", "two"), "--workers two must be a whole number"),
        (("--workers", "0"), "--workers 0 must be a number larger than 0"),
        (("--level", "0.5"), "--level 0.5 must be a whole number"),
        (("--gpu-memory-gb", "80%"), "80%"),
        (("--gpu-memory-gb", "-1"), "--gpu-memory-gb -1.0 must be a number larger than 0"),
        (("--output", ""), "an empty text names no file"),
        (("--set", "device=tpu"), "has no option 'device'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_on_the_command_line(
    command: Command, image: Path, tokens: tuple[str, ...], text: str
) -> None:
    for verb in ("plan", "segment"):
        says(command(verb, image, *THRESHOLD, *tokens), text)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("CYTOPAVE_GPU_MEMORY_GB", "80%", "CYTOPAVE_GPU_MEMORY_GB='80%': Input should be a valid"),
        ("CYTOPAVE_BATCH_SECONDS", "0", "CYTOPAVE_BATCH_SECONDS='0': Input should be greater"),
        ("CYTOPAVE_LOG_LEVEL", "LOUD", "CYTOPAVE_LOG_LEVEL='LOUD': Input should be 'DEBUG'"),
        ("CYTOPAVE_RESULTS", "/proc/no/results", "CYTOPAVE_RESULTS=/proc/no/results cannot be w"),
        ("CYTOPAVE_RESULTS", "s3-bucket/lost", "CYTOPAVE_RESULTS=s3-bucket/lost names a storage"),
    ],
)
def test_in_settings(
    command: Command,
    image: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    text: str,
) -> None:
    monkeypatch.setenv(variable, value)
    for verb, what in (("segment", image), ("sweep", image.parent)):
        says(command(verb, what, *THRESHOLD, "--cluster", "cpu"), text)
    assert stores.listed(image) == []


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (("--cluster", "nvlnk"), "no cluster 'nvlnk' (did you mean 'nvlink'?)"),
        (("--cluster", "nvlink"), "'nvlink' needs an NVIDIA GPU and none is visible"),
        (("--workers", "-1"), "--workers -1 must be a number larger than 0"),
        (("--cluster", "tcp://scheduler"), "write tcp://host:port"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_sweep_is_refused_as_a_whole(
    command: Command, image: Path, tokens: tuple[str, ...], text: str
) -> None:
    """Not once an image."""
    says(command("sweep", image.parent, *THRESHOLD, *tokens), text)


def test_settings_of_prefect(image: Path, tmp_path: Path) -> None:
    """Prefect complains of its variables in long tracebacks, when it is imported."""
    tokens = ["segment", str(image), *THRESHOLD]
    script = f"import cytopave.deployments.cli.app as a; print(a.run({tokens!r}))"
    environ = {**os.environ, "PREFECT_HOME": str(tmp_path), "PREFECT_TASKS_DEFAULT_RETRIES": "80%"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    text = "Prefect's settings cannot be used: PREFECT_TASKS_DEFAULT_RETRIES='80%': Input should be"
    says(Ended(int(done.stdout), "", done.stderr), text)


def test_an_api_that_does_not_answer(command: Command, image: Path) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        text = "no Prefect API answers at http://127.0.0.1:9/api"
        says(command("segment", image, *THRESHOLD), text)
        says(command("sweep", image.parent, *THRESHOLD), text)


def test_no_image(command: Command) -> None:
    """An empty text, as of a variable that is not set, does not mean this folder."""
    for verb in ("plan", "segment"):
        says(command(verb, "", *THRESHOLD), "no image is named")
    says(command("report", ""), "an empty text names no file, folder or URL")


def test_a_misspelt_cluster_starts_no_api(image: Path, tmp_path: Path) -> None:
    """Where no API is set and nothing was ever saved, nobody needs to be asked."""
    script = (
        "import os, sys, psutil\n"
        "from cytopave.deployments.cli.app import run\n"
        f"status = run(['segment', {str(image)!r}, '--segmenter', 'threshold', "
        "'--cluster', 'cpus'])\n"
        "print(status, len(psutil.Process().children()), 'distributed' in sys.modules)\n"
        "from cytopave.flows import segment_image\n"
        "try:\n"
        f"    segment_image({str(image)!r}, cluster='nvlnk')\n"
        "except Exception as error:\n"
        "    print(error, len(psutil.Process().children()))"
    )
    environ = {**os.environ, "PREFECT_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    by_command, by_python = done.stdout.splitlines()
    assert by_command == "2 0 False"
    assert by_python.startswith("there is no cluster 'nvlnk' (did you mean 'nvlink'?): use one of")
    assert by_python.endswith(" 0")
    assert "there is no cluster 'cpus' (did you mean 'cpu'?): use one of auto, cpu," in done.stderr
    assert not [*tmp_path.glob("home/*.db")], "an API was started, and has ended"


@pytest.mark.usefixtures("prefect_api")
def test_names_that_nobody_saved(command: Command, image: Path) -> None:
    servers = ops_flows.api_servers()
    for verb in ("plan", "segment"):
        says(command(verb, image, *THRESHOLD, "--cluster", "lost"), "there is no cluster 'lost'")
        says(command(verb, image, "--model", "model://lost"), "no saved model 'lost'")
        says(command(verb, "store://lost/a.zarr", *THRESHOLD), "no image store 'lost'")
    assert ops_flows.api_servers() == servers


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cluster_class": "dask_cuda.LocalCUDACluster"}, "install cytopave[cuda13]"),
        ({"cluster_class": "distributed.Kluster"}, "no cluster class 'distributed.Kluster'"),
        ({"cluster_class": "no_such_package.Cluster"}, "install the package of no_such_package"),
        ({"workers": 1, "slurm": {}}, "sbatch is not on this host"),
        ({"gpus": "0"}, "gpus is for workers with GPUs"),
        ({"preset": "nvlink", "gpus": "0"}, "is to use the GPU 0 (gpus='0'), and no such GPU"),
        ({"cluster_kwargs": {"rmm_managed_memory": True}}, "rmm_managed_memory is for workers"),
        ({"preset": "cpu", "workers": 1, "cluster_kwargs": {"interface": "no0"}}, "did not start"),
    ],
    ids=str,
)
def test_saved_clusters_that_cannot_start(
    command: Command,
    image: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    text: str,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    Cluster(**fields).save("a-bad-one", overwrite=True)
    says(command("segment", image, *THRESHOLD, "--cluster", "a-bad-one"), text)


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://nowhere.invalid:8786"])
def test_an_unreachable_scheduler(
    command: Command, image: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("CYTOPAVE_WORKER_TIMEOUT_SECONDS", "1")
    text = f"no Dask scheduler answers at {address} within 1 s"
    says(command("segment", image, *THRESHOLD, "--cluster", address), text)


@pytest.mark.usefixtures("prefect_api")
def test_the_file_of_a_saved_model_is_another_one(command: Command, image: Path) -> None:
    CellposeModel(model="nuclei-tiny", sha256="0" * 64).save("not-it", overwrite=True)
    says(command("plan", image, "--model", "model://not-it"), f"and not {'0' * 64}")


def test_a_gpu_that_is_only_told_of(command: Command, image: Path) -> None:
    """A host that submits plans for the GPUs of the workers, and for its own cores otherwise."""
    tokens = ("plan", image, "--model", "nuclei-tiny", "--json")
    told = json.loads(command(*tokens, "--gpu-memory-gb", "24").out)
    assert told["memory"]["budget"] == int(24 * 2**30 * 0.8)
    assert "24 GiB are assumed" in told["memory"]["source"]
    assert told["segmenter"]["device"] == "cuda"
    for further in ((), ("--gpu-memory-gb", "24", "--cluster", "cpu")):
        untold = json.loads(command(*tokens, *further).out)
        assert "of free memory" in untold["memory"]["source"]
        assert untold["segmenter"]["device"] == "cpu"
    elsewhere = json.loads(command(*tokens, "--cluster", "tcp://10.0.0.5:8786").out)
    assert "the workers are asked when the run starts" in elsewhere["memory"]["source"]
