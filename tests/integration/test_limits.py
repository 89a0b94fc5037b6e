"""Runs that use GPUs wait for each other, whoever started them."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import tile_functions
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.settings import PREFECT_API_URL, temporary_settings
from runs import blobs, components, labels_of
from server import wait_until

from cytopave.engine.segmenters import Custom
from cytopave.tasks.limits import limit_name

if TYPE_CHECKING:
    from pathlib import Path

    from runs import Flows


@pytest.mark.parametrize("elsewhere", [False, True], ids=["own workers", "an existing scheduler"])
def test_one_run_at_a_time_on_the_gpus_of_a_host(
    folder: Path, tmp_path: Path, flows: Flows, caplog: pytest.LogCaptureFixture, elsewhere: bool
) -> None:
    """Where no GPU is, one that is said to be there counts: the limit is the same."""
    mask = np.asarray(blobs((64, 64)))
    image = stores.ome_image(folder / "image.zarr", mask.astype(np.uint8))
    method = Custom(function="tile_functions:recorded", kwargs={"folder": str(tmp_path)}, gpu=True)
    request: dict[str, Any] = {"segmenter": method, "gpu_memory_gb": 1.0}
    if not elsewhere:
        request |= {"cluster": "auto", "workers": 1}
    name = limit_name(socket.gethostname())

    def run() -> None:
        with temporary_settings({PREFECT_API_URL: flows.api}):
            flows.segment(image, name=f"cells-{elsewhere}", **request)

    with (
        temporary_settings({PREFECT_API_URL: flows.api}),
        get_client(sync_client=True) as client,
        caplog.at_level(logging.INFO, logger="cytopave.tasks.limits"),
    ):
        # The limit is made on first use.
        flows.segment(image, name="first", segmenter=method, gpu_memory_gb=1.0)
        assert client.read_global_concurrency_limit_by_name(name).limit == 1
        assert tile_functions.calls(tmp_path).total() == 1
        caplog.clear()
        with concurrency(name, occupy=1, strict=True):
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            wait_until(lambda: f"Waiting for a place in {name}" in caplog.text, 300)
            assert client.read_global_concurrency_limit_by_name(name).active_slots == 1
            assert tile_functions.calls(tmp_path).total() == 1
            assert thread.is_alive()
        thread.join(300)
        assert not thread.is_alive()
        assert tile_functions.calls(tmp_path).total() == 2
        assert client.read_global_concurrency_limit_by_name(name).active_slots == 0
    np.testing.assert_array_equal(labels_of(image, f"cells-{elsewhere}"), components(mask))
