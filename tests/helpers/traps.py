"""Worker processes that end at a chosen place of an atlas run, or keep X as those on GPUs do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distributed

if TYPE_CHECKING:
    from collections.abc import Callable


def _set_trap(marks: str, places: list[str], times: int) -> None:
    """On a worker: end it where one of these is called, so many times in all."""
    from cytopave.engine.atlas import kept
    from cytopave.tasks.atlas import task
    from cytopave.tasks.atlas.steps import STEPS
    from cytopave.tasks.atlas.write import write_output

    def trapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            for i in range(times):
                try:
                    os.close(os.open(f"{marks}/{name}-{i}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in places:
        if name in STEPS:
            STEPS[name] = trapped(name, STEPS[name])
        elif name == "write":
            setattr(task, "write_output", trapped(name, write_output))  # noqa: B010
        else:
            setattr(kept, name, trapped(name, getattr(kept, name)))


class Traps(distributed.WorkerPlugin):  # type: ignore[misc]
    """Sets them in every worker, those that are started anew included."""

    def __init__(self, marks: Path, places: list[str], times: int) -> None:
        self._arguments = (str(marks), places, times)

    def setup(self, worker: Any) -> None:
        _set_trap(*self._arguments)


class Resident(distributed.WorkerPlugin):  # type: ignore[misc]
    """Has plans say that X stays with the workers, as they do for GPUs that it fits."""

    def setup(self, worker: Any) -> None:
        from cytopave.engine.atlas import planner
        from cytopave.engine.atlas.plan import AtlasPlan

        def made(**fields: Any) -> AtlasPlan:
            return AtlasPlan(**(fields | {"resident": True}))

        setattr(planner, "AtlasPlan", made)  # noqa: B010
