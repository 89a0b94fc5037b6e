"""Isolation of all tests: a Prefect home of their own, no API but a temporary one, no telemetry."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runs import Flows

HELPERS = str(Path(__file__).parent / "helpers")


def _isolate() -> None:
    """Before anything imports Prefect, which reads its environment once."""
    home = tempfile.mkdtemp(prefix="cytopave-tests-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [n for n in os.environ if n.startswith(("PREFECT_", "CYTOPAVE_"))]:
        del os.environ[name]
    os.environ |= {
        "PREFECT_HOME": home,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        # Worker processes import the tasks of the tests by name.
        "PYTHONPATH": os.pathsep.join(filter(None, [HELPERS, os.environ.get("PYTHONPATH")])),
    }


_isolate()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_unconfigure() -> None:
    # Prefect tells at exit that its server stops: to a stream that pytest has closed by then.
    logging.getLogger("prefect").setLevel(logging.ERROR)


def _cuda() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())


@pytest.fixture(scope="session")
def prefect_api() -> str:
    """URL of the temporary API that all flows of this test session share."""
    from cytopave.tasks.runner import embedded_api

    return embedded_api()


@pytest.fixture(scope="session")
def dask_address() -> Iterator[str]:
    """Address of a scheduler with two worker processes that runs for the whole session."""
    import dask
    from distributed import LocalCluster

    with (
        # Workers that a test kills are back, however long that takes.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster.scheduler_address


# Times on a shared machine say nothing about the code.
hypothesis.settings.register_profile(
    "cytopave", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("cytopave")


@pytest.fixture
def flows(prefect_api: str, dask_address: str) -> Flows:
    """Runs `segment_image` on the session's workers: a run then costs seconds."""
    from runs import Flows

    return Flows(prefect_api, dask_address)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for images, in which a test may look for what a run leaves behind."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"
