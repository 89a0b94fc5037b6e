"""Who does the work of the commands that need no GPU, and where they keep what is half done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from cytopave.deployments.cli.clusters import find_cluster
from cytopave.deployments.cli.console import say
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Flag, Whole, check_positive


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers of a run."""

    workers: Whole | None = None
    """Number of workers; one a CPU core where not given."""
    cluster: str = "cpu"
    """cpu, a scheduler's address (tcp://...), or a saved block's name."""

    def check(self) -> None:
        """Refuse a number of workers that is none.

        Raises:
            PlanError: It is not larger than 0.
        """
        check_positive(workers=self.workers)

    def begin(self, *, verbose: bool) -> None:
        """Make ready to run a flow in this process: Prefect, its API, and a cluster that can be.

        Raises:
            UserError: The API or the cluster cannot be had.
        """
        prepare_prefect(verbose=verbose)
        find_cluster(self.cluster)
        if sys.stderr.isatty():
            say("starting; this takes some seconds")
        from cytopave.tasks.runner import embedded_api

        embedded_api()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Resumable(Workers):
    """The workers of a run that is continued where it was interrupted."""

    scratch: str | None = None
    """Folder for what is half done; all workers share it; beside the output where not given."""
    keep_scratch: Flag = False
    """Keep it after the run."""

    @property
    def folder(self) -> Path | None:
        """The folder that was named, here or in the settings."""
        from cytopave.engine.settings import load_settings

        scratch = self.scratch or load_settings().scratch
        return Path(scratch) if scratch else None
