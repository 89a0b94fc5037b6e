from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import distributed
import pytest
from dask.system import CPU_COUNT
from pydantic import ValidationError

from cytopave.blocks import Cluster
from cytopave.blocks.arguments import LOCAL_ARGUMENTS
from cytopave.blocks.cluster import PRESETS, resolve_cluster
from cytopave.engine.errors import ClusterError, MissingExtraError


def test_the_package_of_the_blocks_is_light() -> None:
    script = (
        "import sys, cytopave.blocks\n"
        "assert not {'dask', 'distributed', 'torch', 'prefect_dask'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_auto_takes_a_worker_a_core_without_a_gpu() -> None:
    name, options = Cluster().recipe(gpu=False)
    assert name == "distributed.LocalCluster"
    assert options["processes"] is True
    assert options["threads_per_worker"] == 1
    assert 1 <= options["n_workers"] <= CPU_COUNT


def test_auto_takes_a_worker_a_gpu() -> None:
    name, options = Cluster().recipe(gpu=True)
    assert name == "dask_cuda.LocalCUDACluster"
    assert "n_workers" not in options  # dask-cuda counts the granted cards
    assert not any(option.startswith("rmm") for option in options)  # a pool is torch's loss


def test_presets_of_the_gpu() -> None:
    _, fast = Cluster(preset="nvlink").recipe(gpu=True, library="cupy")
    assert (fast["protocol"], fast["rmm_pool_size"]) == ("ucx", 0.5)
    assert fast["rmm_allocator_external_lib_list"] == ["cupy"]
    assert not fast.get("rmm_managed_memory")
    _, large = Cluster(preset="capacity").recipe(gpu=True, library="cupy")
    assert (large["protocol"], large["rmm_managed_memory"]) == ("tcp", True)
    for preset in ("nvlink", "capacity"):
        with pytest.raises(ClusterError, match=f"'{preset}' needs an NVIDIA GPU"):
            Cluster(preset=preset).recipe(gpu=False)


@pytest.mark.parametrize(
    ("where", "protocol"),
    [
        ({"gpus": "1"}, "tcp"),
        ({"workers": 1}, "tcp"),
        ({"gpus": "0,1"}, "ucx"),
        ({"gpus": "0,1", "workers": 1}, "tcp"),
        ({"gpus": "1", "cluster_kwargs": {"protocol": "ucx"}}, "ucx"),
    ],
)
def test_one_gpu_needs_no_ucx(where: dict[str, Any], protocol: str) -> None:
    _, options = Cluster(preset="nvlink", **where).recipe(gpu=True, library="cupy")
    assert options["protocol"] == protocol
    assert options["rmm_pool_size"] == 0.5


def test_segmentation_gets_no_pool() -> None:
    """What RMM takes from a card, PyTorch cannot have."""
    _, options = Cluster(preset="nvlink").recipe(gpu=True, library="torch")
    assert options["protocol"] == "ucx"
    assert not {"rmm_pool_size", "rmm_allocator_external_lib_list"} & set(options)
    block = Cluster(preset="nvlink", rmm_pool_size=0.8)
    with pytest.raises(ClusterError, match=r"rmm_pool_size=0\.8.* PyTorch.*leave rmm"):
        block.recipe(gpu=True, library="torch")
    _, options = block.recipe(gpu=True, library="cupy")
    assert options["rmm_pool_size"] == 0.8


def test_gpus_by_number() -> None:
    _, options = Cluster(gpus="0, 2").recipe(gpu=True)
    assert options["CUDA_VISIBLE_DEVICES"] == "0,2"
    with pytest.raises(ClusterError, match="gpus is for workers with GPUs"):
        Cluster(gpus="0").recipe(gpu=False)
    with pytest.raises(ClusterError, match="rmm_managed_memory is for workers with GPUs"):
        Cluster(cluster_kwargs={"rmm_managed_memory": True}).recipe(gpu=False)


def test_workers_of_the_preset_cpu_see_no_gpu() -> None:
    """Not even those of a method that would look for one by itself."""
    block = Cluster(preset="cpu", workers=1, cluster_kwargs={"env": {"OMP_NUM_THREADS": "2"}})
    _, options = block.recipe(gpu=True)
    assert options["env"] == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}


def test_arguments_that_may_be_given_exist() -> None:
    """Those of GPU clusters cannot be looked at here; these can."""
    classes = (distributed.LocalCluster, distributed.Nanny, distributed.Worker)
    taken = {name for c in classes for name in inspect.signature(c.__init__).parameters}
    assert taken >= LOCAL_ARGUMENTS


def test_what_was_asked_for_reaches_the_cluster() -> None:
    block = Cluster(
        preset="cpu", workers=3, memory_limit="2GiB", cluster_kwargs={"local_directory": "/fast"}
    )
    _, options = block.recipe(gpu=True)
    assert options["n_workers"] == 3
    assert options["memory_limit"] == "2GiB"
    assert options["local_directory"] == "/fast"


def test_other_classes_get_their_own_arguments() -> None:
    block = Cluster(
        cluster_class="dask_jobqueue.SLURMCluster",
        workers=8,
        cluster_kwargs={"cores": 1, "processes": 1, "memory": "16GB", "queue": "gpu"},
    )
    assert block.recipe(gpu=False) == (
        "dask_jobqueue.SLURMCluster",
        {"n_workers": 8, "cores": 1, "processes": 1, "memory": "16GB", "queue": "gpu"},
    )


def kwargs(**options: Any) -> dict[str, Any]:
    return {"cluster_kwargs": options}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (kwargs(processes=False), "processes=False.*gives it up for dead"),
        ({"preset": "fast"}, "'auto', 'cpu', 'nvlink' or 'capacity'"),
        ({"workers": 0}, "greater than 0"),
        ({"memory_limit": "80%"}, "memory_limit='80%'.*the fraction 0.8"),
        ({"memory_limit": "8 gigs"}, "memory_limit='8 gigs' is no size.*'8GiB'"),
        ({"memory_limit": 8.5}, "'8.5GiB'"),
        ({"preset": "nvlink", **kwargs(rmm_pool_size="80%")}, "rmm_pool_size='80%'.*0.8"),
        ({"preset": "nvlink", **kwargs(rmm_managed_memory=True)}, "UCX cannot move managed"),
        ({"preset": "capacity", **kwargs(protocol="ucx")}, "UCX cannot move managed"),
        (kwargs(protocol="ucxx://", rmm_managed_memory=True), "UCX cannot move managed"),
        (kwargs(rmm_allocator_external_lib="cupy"), "rmm_allocator_external_lib_list"),
        (kwargs(threads_per_worker=10), "one tile at a time"),
        (kwargs(n_workers=2), "set the field workers"),
        (kwargs(memory_limit="2GiB"), "set the field memory_limit"),
        (kwargs(rmm_pool_size=0.5), "set the field rmm_pool_size"),
        (kwargs(CUDA_VISIBLE_DEVICES="0"), "set the field gpus"),
        (kwargs(rmm_managed_memry=True), "no argument 'rmm_managed_memry'.*'rmm_managed_memory'"),
        (kwargs(protocol="pigeon"), "protocol='pigeon' is none.*tcp, tls, ucx"),
        (kwargs(enable_nvlink="yes"), "enable_nvlink='yes' must be true or false"),
        (kwargs(device_memory_limit="much"), "device_memory_limit='much' is no size"),
        (kwargs(rmm_allocator_external_lib_list="torch,jax"), "names 'jax'.*torch and cupy"),
        (kwargs(rmm_async=True, rmm_managed_memory=True), "rmm_async goes with neither"),
        ({"rmm_pool_size": "80%"}, "rmm_pool_size='80%'.*the fraction 0.8"),
        ({"rmm_pool_size": 80.0}, "rmm_pool_size=80.0 is neither a fraction.*'80GiB'"),
        ({"gpus": "first"}, "gpus"),
        ({"wait_seconds": 0}, "wait_seconds"),
        ({"gpu_workers": True}, "the presets say whether GPUs are used"),
        ({"slurm": {}}, "say how many workers slurm shall start"),
        ({"workers": 2, "slurm": {"memory": "lots"}}, "slurm.memory"),
        ({"workers": 2, "slurm": {"queue": "gpu"}}, "slurm.queue"),
        ({"workers": 2, "slurm": {"directives": ["gres=gpu:1"]}}, "no option of sbatch"),
        ({"workers": 2, "slurm": {}, "memory_limit": "8GiB"}, "set memory of slurm"),
        ({"workers": 2, "slurm": {}, "preset": "nvlink"}, "preset='nvlink' is for"),
        ({"workers": 2, "slurm": {}, "gpus": "0"}, "gpus is for workers on this machine"),
        (
            {"workers": 2, "slurm": {}, "kubernetes": {"image": "i"}},
            "slurm and kubernetes name",
        ),
        ({"workers": 2, "kubernetes": {}}, "kubernetes.image"),
        ({"workers": 2, "kubernetes": {"image": "i", "memory": "16 GB"}}, "kubernetes.memory"),
        ({"address": "tcp://a:1", **kwargs(name="x")}, "either the address or"),
        (kwargs(asynchronous=True), "asynchronous is managed"),
        ({"address": "inproc://10.0.0.1/1/1"}, "inside one process"),
        ({"address": "10.0.0.5:8786"}, "write tcp://host:port"),
        ({"address": "tcp://a:1", "cluster_class": "x.Y"}, "name two clusters"),
        ({"adress": "tcp://a:1"}, "adress"),
    ],
    ids=str,
)
def test_refused_before_anything_starts(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Cluster(**fields)


def test_strings_that_name_a_cluster() -> None:
    for preset in PRESETS:
        assert resolve_cluster(preset).preset == preset
    assert resolve_cluster(" tcp://10.0.0.5:8786 ").address == "tcp://10.0.0.5:8786"
    assert resolve_cluster("tls://host:1").address == "tls://host:1"
    block = Cluster(preset="cpu")
    assert resolve_cluster(block) is block


def test_an_address_inside_a_process_is_refused() -> None:
    with pytest.raises(ClusterError, match="processes=True"):
        resolve_cluster("inproc://10.0.0.1/1/1")


def test_saved_blocks_by_name(prefect_api: str) -> None:
    saved = Cluster(cluster_class="dask_jobqueue.SLURMCluster", cluster_kwargs={"cores": 1})
    saved.save("our-slurm")
    loaded = resolve_cluster("our-slurm")
    assert loaded.cluster_class == saved.cluster_class
    assert loaded.cluster_kwargs == saved.cluster_kwargs
    for name in ("ourslurm", "our/slurm"):
        with pytest.raises(ClusterError, match=rf"no cluster '{name}'.*auto, cpu, nvlink"):
            resolve_cluster(name)


def test_a_class_that_is_not_installed_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"cytopave\[cuda13\].*'cpu'"):
        Cluster().start(gpu=True)
    with pytest.raises(ClusterError, match=r"no cluster class 'distributed\.Kluster'"):
        Cluster(cluster_class="distributed.Kluster").start(gpu=False)
    with pytest.raises(ClusterError, match="no cluster class 'Kluster'"):
        Cluster(cluster_class="Kluster").start(gpu=False)


def test_arguments_that_the_class_does_not_take() -> None:
    block = Cluster(preset="cpu", workers=1, cluster_kwargs={"interface": "nowhere0"})
    with pytest.raises(ClusterError, match=r"did not start with .*nowhere0"):
        block.start(gpu=False)
