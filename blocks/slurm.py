"""Workers as jobs of SLURM, through dask-jobqueue."""

from __future__ import annotations

import contextlib
import shutil
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from cytopave.engine.errors import ClusterError

CLASS = "dask_jobqueue.SLURMCluster"


class Slurm(BaseModel):
    """One job a worker: what each of them asks SLURM for.

    What is left out here is taken from dask-jobqueue's own configuration (``jobqueue.yaml``).
    """

    model_config = ConfigDict(extra="forbid")

    partition: Annotated[str | None, Field(description="Partition (queue) of the jobs.")] = None
    account: Annotated[str | None, Field(description="Account that the jobs are charged to.")] = (
        None
    )
    walltime: Annotated[
        str | None, Field(description="Longest time of a job, such as 08:00:00.")
    ] = None
    cores: Annotated[
        PositiveInt,
        Field(description="Cores of a job: for reading, decoding and what the method uses itself."),
    ] = 4
    memory: Annotated[
        str, Field(description="Host memory of a job, such as 32GiB.", pattern=r"^\d+ ?[kMGT]i?B$")
    ] = "16GiB"
    gres: Annotated[
        str | None,
        Field(
            description="How the site names one GPU; 'gpu:1' where not set. Asked for if the "
            "cluster's workers have GPUs (gpu_workers)."
        ),
    ] = None
    directives: Annotated[
        list[str],
        Field(description="Further lines for #SBATCH, such as --constraint=a100."),
    ] = []
    prologue: Annotated[
        list[str],
        Field(description="Commands before a worker starts, such as module load cuda."),
    ] = []
    python: Annotated[
        str | None,
        Field(description="Python of the workers; the one that starts the run where not set."),
    ] = None
    interface: Annotated[
        str | None,
        Field(description="Network by which scheduler and workers talk, such as ib0."),
    ] = None
    log_directory: Annotated[
        str | None, Field(description="Folder of the jobs' own output; SLURM's choice if not set.")
    ] = None

    @field_validator("directives")
    @classmethod
    def _are_options(cls, value: list[str]) -> list[str]:
        for line in value:
            if not line.startswith("-"):
                raise ValueError(
                    f"{line!r} is no option of sbatch: write it as in a job script, without "
                    "#SBATCH, such as --constraint=a100"
                )
        return value

    def recipe(self, *, gpu: bool) -> tuple[str, dict[str, Any]]:
        """The cluster's class by name, and its arguments but for the number of workers.

        Args:
            gpu: Whether each job gets a GPU.
        """
        directives = [f"--gres={self.gres or 'gpu:1'}"] if gpu else []
        given = {
            "queue": self.partition,
            "account": self.account,
            "walltime": self.walltime,
            "python": self.python,
            "interface": self.interface,
            "log_directory": self.log_directory,
        }
        return CLASS, {
            # dask-jobqueue makes a worker thread of each core: one, and the job's cores apart.
            "cores": 1,
            "processes": 1,
            "job_cpu": self.cores,
            "memory": self.memory,
            "job_name": "cytopave-worker",
            "job_extra_directives": [*directives, *self.directives],
            "job_script_prologue": self.prologue,
            "scheduler_options": {"dashboard_address": ":0"},
            **{name: value for name, value in given.items() if value is not None},
        }


def start(cluster_class: Any, options: dict[str, Any]) -> Any:
    """Start a scheduler here and submit the jobs of its workers; returns the cluster.

    Left to itself, dask-jobqueue submits them some time later, and waits without a word if SLURM
    takes none.

    Raises:
        ClusterError: This host cannot submit jobs.
        RuntimeError: SLURM refused a job; the message holds what it said.
    """
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "SLURM's command sbatch is not on this host: start the run where jobs can be "
            "submitted (a login node), or take another cluster"
        )
    options = dict(options)
    workers = options.pop("n_workers")
    cluster = cluster_class(**options)
    try:
        while len(cluster.worker_spec) < workers:
            cluster.worker_spec.update(cluster.new_worker_spec())
        cluster.sync(cluster._correct_state)
    except BaseException as error:
        with contextlib.suppress(AssertionError):  # of jobs that never were
            cluster.close(timeout=10)
        if isinstance(error, RuntimeError) and "stderr:" in str(error):
            raise RuntimeError(str(error).partition("stderr:")[2].strip()) from None
        raise
    return cluster
