"""Plans are made for the workers that came, by what they say themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import distributed
import ops_flows
import psutil
import pytest

from cytopave.blocks import Cluster
from cytopave.engine.errors import ClusterError, PlanError, SegmenterError
from cytopave.engine.segmenters import Cellpose, Threshold

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("prefect_api")
GIB = 2**30


@pytest.fixture(scope="module")
def odd_pair() -> Iterator[str]:
    """Two workers, one of which believes that it has a GPU."""
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        options = {"nthreads": 1, "memory_limit": "1GiB"}
        for name, env in (("with", {"SEES_A_GPU": "1"}), ("without", {})):
            cluster.worker_spec[name] = {
                "cls": distributed.Nanny,
                "options": {**options, "env": {**env, "CUDA_VISIBLE_DEVICES": ""}},
            }
        cluster.sync(cluster._correct_state)
        yield cluster.scheduler_address


def sees() -> ops_flows.Sees:
    return ops_flows.Sees(function="a:b")


def test_the_workers_are_asked_for_their_memory(odd_pair: str) -> None:
    """This host has more than the gibibyte at which these workers are stopped."""
    assert psutil.virtual_memory().available > 3 * GIB
    budget = ops_flows.budget_flow(Threshold(), cluster=odd_pair)
    assert budget.size == GIB // 2
    assert budget.source == "half of the 1.0 GiB of free memory that each of 2 workers has"


def test_workers_of_two_kinds_are_refused(odd_pair: str) -> None:
    with pytest.raises(ClusterError, match=r"1 of 2 workers have a GPU, and tcp://\S+ has none"):
        ops_flows.budget_flow(sees(), cluster=odd_pair)


def test_gpus_that_were_promised_and_are_not_there(dask_address: str) -> None:
    with pytest.raises(PlanError, match=r"gpu_memory_gb=24 says .* finds none on any of them"):
        ops_flows.budget_flow(sees(), cluster=dask_address, assumed_gb=24.0)
    promised = Cluster(address=dask_address, gpu_workers=True)
    with pytest.raises(PlanError, match=r"gpu_workers says .* finds none"):
        ops_flows.budget_flow(sees(), cluster=promised)
    assert not ops_flows.budget_flow(sees(), cluster=dask_address).on_gpu


def test_a_gpu_that_nobody_can_look_at(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where workers use one and the driver says nothing of it: what was told, or 8 GiB."""
    monkeypatch.setenv("SEES_A_GPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with distributed.LocalCluster(n_workers=1, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        told = ops_flows.budget_flow(sees(), cluster=address, assumed_gb=24.0)
        assert (told.on_gpu, told.size) == (True, int(24 * GIB * 0.8))
        untold = ops_flows.budget_flow(sees(), cluster=address)
        assert (untold.on_gpu, untold.size) == (True, int(8 * GIB * 0.8))
    assert "8 GiB are assumed" in caplog.text


def test_a_gpu_is_asked_for_and_the_workers_have_none(dask_address: str) -> None:
    cuda = Cellpose(device="cuda")
    with pytest.raises(ClusterError, match="needs a GPU, and the cluster's workers have none"):
        ops_flows.budget_flow(cuda, cluster="cpu")
    with pytest.raises(SegmenterError, match="PyTorch sees no CUDA GPU in this process"):
        ops_flows.budget_flow(cuda, cluster=dask_address)


def test_the_preset_cpu_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers see no GPU, so that none can be meant, whatever is set for the site."""
    monkeypatch.setenv("SEES_A_GPU", "1")
    budget = ops_flows.budget_flow(sees(), cluster="cpu", workers=1, assumed_gb=24.0)
    assert not budget.on_gpu
