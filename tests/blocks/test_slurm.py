"""What dask-jobqueue, the real one, makes of the block: the job script that SLURM gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from slurm import Slurm

from cytopave.blocks import Cluster
from cytopave.engine.errors import ClusterError

pytest.importorskip("dask_jobqueue", reason="needs cytopave[slurm]; requirements/dev.txt has it")

LAB = {
    "partition": "gpu",
    "account": "lab",
    "walltime": "08:00:00",
    "cores": 6,
    "memory": "48GiB",
    "directives": ["--constraint=a100"],
    "prologue": ["module load cuda"],
    "python": "/opt/env/bin/python",
    "log_directory": "logs",
}
SCRIPT = """\
#!/usr/bin/env bash

#SBATCH -J cytopave-worker
#SBATCH -e logs/cytopave-worker-%J.err
#SBATCH -o logs/cytopave-worker-%J.out
#SBATCH -p gpu
#SBATCH -A lab
#SBATCH -n 1
#SBATCH --cpus-per-task=6
#SBATCH --mem=48G
#SBATCH -t 08:00:00
#SBATCH --gres=gpu:1
#SBATCH --constraint=a100
module load cuda
/opt/env/bin/python -m distributed.cli.dask_worker ADDRESS --name dummy-name --nthreads 1 \
--memory-limit 48.00GiB --nanny --death-timeout 60
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_job_script_of_a_gpu_worker() -> None:
    """One thread, one GPU, and all of the job's cores and memory for the tile."""
    from dask_jobqueue import SLURMCluster

    block = Cluster(workers=2, gpu_workers=True, slurm=LAB)
    name, options = block.recipe(gpu=False)
    assert name == "dask_jobqueue.SLURMCluster"
    assert options.pop("n_workers") == 2
    with SLURMCluster(**options) as cluster:
        assert cluster.job_script() == SCRIPT.replace("ADDRESS", cluster.scheduler_address)


def test_sites_may_name_their_gpus_otherwise() -> None:
    gres = {"slurm": {"gres": "gpu:h100:1"}, "workers": 1}
    _, options = Cluster(gpu_workers=True, **gres).recipe(gpu=False)
    assert options["job_extra_directives"] == ["--gres=gpu:h100:1"]
    _, options = Cluster(**gres).recipe(gpu=True)
    assert options["job_extra_directives"] == []


def test_what_the_site_configured_for_dask_stays() -> None:
    """What the block leaves open is dask-jobqueue's to decide, and further arguments reach it."""
    _, options = Cluster(
        workers=1, slurm={}, cluster_kwargs={"local_directory": "/fast", "memory": "2GiB"}
    ).recipe(gpu=False)
    assert not {"queue", "account", "walltime", "python", "interface"} & set(options)
    assert options["local_directory"] == "/fast"
    assert options["memory"] == "2GiB"


def test_jobs_are_submitted_and_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(tmp_path / "slurm", monkeypatch, takes=True)
    with Cluster(workers=2, slurm={"memory": "1GiB"}).start(gpu=False) as cluster:
        assert len(cluster.worker_spec) == 2
        address = cluster.scheduler_address
    assert len(slurm.cancelled()) == 2
    for script in slurm.jobs():
        assert f"{sys.executable} -m distributed.cli.dask_worker {address} " in script


def test_a_job_that_slurm_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Slurm(tmp_path / "slurm", monkeypatch, takes=False)
    with pytest.raises(ClusterError) as caught:
        Cluster(workers=2, slurm={"partition": "gpu"}).start(gpu=False)
    assert str(caught.value) == (
        "dask_jobqueue.SLURMCluster did not start (sbatch: error: invalid partition specified: "
        "gpu): correct what the block asks SLURM for"
    )


def test_a_host_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"sbatch is not on this host: .*a login node"):
        Cluster(workers=1, slurm={}).start(gpu=False)
