from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import distributed
import ops_flows
import pytest
from distributed.protocol import pickle

from cytopave.blocks import Cluster
from cytopave.engine.errors import ClusterError
from cytopave.tasks.runner import (
    ClusterTaskRunner,
    check_no_default_client,
    embedded_api,
    make_runner,
    slots,
)
from cytopave.tasks.workers import connect, wait_for_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("prefect_api")
ALL_FOUR = {"Completed": 4}


@pytest.fixture
def default_client(dask_address: str) -> Iterator[distributed.Client]:
    with distributed.Client(dask_address) as client:
        yield client


def test_one_api_serves_the_flow_and_all_its_workers() -> None:
    state = ops_flows.where_flow(workers=2, return_state=True)
    result = state.result()
    assert (result["slots"], result["neighbours"]) == (2, 2)
    assert os.getpid() not in result["pids"]
    assert len(result["servers"]) == 1
    # The terminal's Ctrl-C is for the flow alone, which then closes these in order.
    assert result["deaf_to_ctrl_c"]
    # Nothing went to a database of a worker's own.
    runs = ops_flows.task_runs(state.state_details.flow_run_id, ALL_FOUR)
    assert ops_flows.states_of(runs) == ALL_FOUR
    # What is started next in this process is as talkative as ever.
    assert "DASK_LOGGING" not in os.environ


@pytest.mark.parametrize("form", [str, lambda a: Cluster(address=a), lambda a: {"address": a}])
def test_an_address_is_used(dask_address: str, form: Callable[[str], Any]) -> None:
    result = ops_flows.where_flow(cluster=form(dask_address))
    with distributed.Client(dask_address, set_as_default=False) as client:
        assert set(result["pids"]) <= set(client.run(os.getpid).values())
    assert len(result["servers"]) == 1


def test_an_api_that_is_set_is_used(prefect_api: str, dask_address: str) -> None:
    script = (
        f"from ops_flows import where_flow\n"
        f"state = where_flow(cluster={dask_address!r}, return_state=True)\n"
        f"assert state.result()['servers'] == []\n"
        f"print(state.state_details.flow_run_id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PREFECT_API_URL": prefect_api},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    runs = ops_flows.task_runs(UUID(done.stdout.strip()), ALL_FOUR)
    assert ops_flows.states_of(runs) == ALL_FOUR


def test_a_default_client_is_refused(default_client: distributed.Client) -> None:
    address = default_client.scheduler.address
    for run in (ops_flows.where_flow, ops_flows.unchecked_flow):
        with pytest.raises(ClusterError, match=r"client\.close\(\)") as caught:
            run(cluster="auto", workers=1)
        assert f"cluster='{address}'" in str(caught.value)


def test_a_default_client_of_the_wanted_cluster_is_no_obstacle(
    default_client: distributed.Client,
) -> None:
    address = default_client.scheduler.address
    assert set(ops_flows.unchecked_flow(cluster=address)) <= set(
        default_client.run(os.getpid).values()
    )
    localhost = address.replace("127.0.0.1", "localhost")
    assert localhost != address
    assert len(ops_flows.unchecked_flow(cluster=localhost)) == 2


def test_a_default_client_of_threads_is_refused() -> None:
    with (
        distributed.Client(processes=False, dashboard_address=":0"),
        pytest.raises(ClusterError, match=r"threads of it .*lock.*processes=True"),
    ):
        ops_flows.unchecked_flow(cluster="auto", workers=1)


def test_threads_behind_a_tcp_address_are_refused() -> None:
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, protocol="tcp", dashboard_address=":0"
        ) as cluster,
        pytest.raises(ClusterError, match=r"threads of this process: .*processes=True"),
    ):
        ops_flows.where_flow(cluster=cluster.scheduler_address)


def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_WORKER_TIMEOUT_SECONDS", "1")
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        ops_flows.where_flow(cluster="tcp://127.0.0.1:9")


def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting limits the connection as well, so that it is tried on one that is there."""
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        alone = Cluster(address=cluster.scheduler_address, wait_seconds=0.5)
        with pytest.raises(ClusterError, match=r"had no worker after 0\.5 s"):
            ops_flows.where_flow(cluster=alone)
        with connect(cluster.scheduler_address) as client:
            monkeypatch.setenv("CYTOPAVE_WORKER_TIMEOUT_SECONDS", "0.25")
            with pytest.raises(ClusterError, match=r"had no worker after 0\.25 s"):
                wait_for_workers(client, alone.model_copy(update={"wait_seconds": None}))


def test_workers_that_cannot_reach_the_temporary_api() -> None:
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    with (
        distributed.LocalCluster(n_workers=1, dashboard_address=":0", env=proxy) as cluster,
        pytest.raises(ClusterError, match=r"cannot reach the temporary .*PREFECT_API_URL"),
    ):
        ops_flows.where_flow(cluster=cluster.scheduler_address)


def test_a_client_that_is_no_default_is_no_obstacle(dask_address: str) -> None:
    with distributed.Client(dask_address, set_as_default=False):
        check_no_default_client("auto")


def test_a_cluster_of_no_such_name() -> None:
    with pytest.raises(ClusterError, match="no cluster 'nonesuch'"):
        ops_flows.unchecked_flow(cluster="nonesuch")


def test_runners_are_copied_by_their_settings() -> None:
    runner = ClusterTaskRunner(Cluster(preset="cpu"), 3)
    assert runner.duplicate() == runner
    assert runner.duplicate() is not runner
    assert runner != ClusterTaskRunner(Cluster(preset="cpu"), 2)
    assert runner != make_runner()
    # The flow, and with it its runner, travels to the workers with every task.
    arrived = pickle.loads(pickle.dumps(ops_flows.where_flow))
    assert arrived.task_runner == make_runner()


def test_a_worker_that_lost_its_scheduler_says_so_in_one_line() -> None:
    said = ops_flows.heartbeat_flow(workers=1)
    assert said == "Failed to communicate with scheduler during heartbeat.\n"


def test_slots_need_a_flow() -> None:
    with pytest.raises(ClusterError, match="make_runner"):
        slots()


def test_the_embedded_api_starts_once(prefect_api: str) -> None:
    assert embedded_api() == prefect_api
    assert len(ops_flows.api_servers()) == 1
