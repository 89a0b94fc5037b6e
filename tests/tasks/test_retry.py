from __future__ import annotations

from typing import TYPE_CHECKING

import ops_flows
import pytest

from cytopave.engine.settings import Settings
from cytopave.tasks.retry import backoff_delays, retrying

if TYPE_CHECKING:
    from pathlib import Path


def test_each_wait_is_twice_the_one_before() -> None:
    assert backoff_delays(Settings(retries=4, backoff_seconds=30)) == [30, 60, 120, 240]
    assert backoff_delays(Settings(retries=0)) == []


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_RETRIES", "2")
    monkeypatch.setenv("CYTOPAVE_BACKOFF_SECONDS", "7")
    patient = retrying(ops_flows.where)
    assert (patient.retries, patient.retry_delay_seconds) == (2, [7, 14])


@pytest.mark.usefixtures("prefect_api")
def test_only_the_gpus_shortage_is_tried_again(tmp_path: Path, dask_address: str) -> None:
    outcomes = ops_flows.retry_flow(tmp_path, cluster=dask_address)
    assert outcomes == {"oom": (3, None), "host": (None, "MemoryError: the host is full")}
    first, second, third = map(float, (tmp_path / "oom").read_text().split())
    assert second - first >= 0.2 * 0.5  # jitter shortens a wait by less than half
    assert third - second >= 0.4 * 0.5
    assert len((tmp_path / "host").read_text().splitlines()) == 1
