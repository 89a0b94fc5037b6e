"""What dask-kubernetes, the real one, submits for the block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kubernetes_api
import pytest

from cytopave.blocks import Cluster
from cytopave.engine.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("dask_kubernetes", reason="needs cytopave[kubernetes]; requirements/dev.txt")

LAB: dict[str, Any] = {
    "image": "registry.example.org/cytopave:0.1.0",
    "cpu": "6",
    "memory": "48Gi",
    "env": {"OMP_NUM_THREADS": "4"},
    "volumes": {"scans": "/scans", "scratch": "/scratch"},
    "node_selector": {"gpu": "a100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "image_pull_secret": "registry",
}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kubernetes_api.Api]:
    with kubernetes_api.serve(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def test_the_manifest_that_is_submitted(api: kubernetes_api.Api) -> None:
    """And that it is deleted again where no operator acts on it."""
    block = Cluster(
        workers=3, gpu_workers=True, kubernetes=LAB, cluster_kwargs={"resource_timeout": 1}
    )
    with pytest.raises(ClusterError, match=r"did not start \(.*is the Dask Operator running\?\)"):
        block.start(gpu=False)
    (resource,) = api.submitted
    assert not api.there
    assert (resource["apiVersion"], resource["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    assert resource["metadata"]["namespace"] == "imaging"
    worker, scheduler = resource["spec"]["worker"], resource["spec"]["scheduler"]
    assert worker["replicas"] == 3
    pod = worker["spec"]
    (container,) = pod["containers"]
    assert container["image"] == LAB["image"]
    assert container["args"][:4] == ["dask", "worker", "--nthreads", "1"]
    assert container["resources"] == {
        "requests": {"cpu": "6", "memory": "48Gi"},
        "limits": {"memory": "48Gi", "nvidia.com/gpu": "1"},
    }
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in container["env"]
    claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"]}
    mounts = {claims[m["name"]]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts == LAB["volumes"]
    assert pod["nodeSelector"] == LAB["node_selector"]
    assert pod["tolerations"] == LAB["tolerations"]
    # The scheduler needs no GPU and none of the data, and gives a task one further worker.
    (container,) = scheduler["spec"]["containers"]
    assert container["resources"] is None
    assert "volumes" not in scheduler["spec"]
    assert {"name": "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "value": "1"} in (
        container["env"]
    )
    for part in (pod, scheduler["spec"]):
        assert part["imagePullSecrets"] == [{"name": "registry"}]


def test_workers_without_gpus_ask_for_none() -> None:
    block = Cluster(workers=1, kubernetes={"image": "i"}, cluster_kwargs={"namespace": "other"})
    name, options = block.recipe(gpu=True)
    assert name == "dask_kubernetes.operator.KubeCluster"
    assert options["namespace"] == "other"
    pod = options["custom_cluster_spec"]["spec"]["worker"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "16Gi"}
    assert not {"volumes", "nodeSelector", "tolerations", "imagePullSecrets"} & set(pod)


def test_where_there_is_no_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match=r"did not start .*credentials.*kubectl works here"):
        Cluster(workers=1, kubernetes={"image": "i"}).start(gpu=False)
