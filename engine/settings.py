"""How a machine or an operator tunes cytopave, through ``CYTOPAVE_...`` environment variables.

Whatever changes the output is a parameter of the flow, never a setting: cached results would not
notice it.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cytopave.engine.errors import UserError

_PREFIX = "CYTOPAVE_"
_log = logging.getLogger(__name__)


class Settings(BaseSettings):
    """The settings; each field is read from the variable of its name, in capitals."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid")

    scratch: Annotated[
        Path | None,
        Field(description="Folder for tile files; beside the output where not set."),
    ] = None
    gpu_memory_gb: Annotated[
        PositiveFloat | None,
        Field(description="GiB of the workers' GPUs, where planning cannot see them."),
    ] = None
    retries: Annotated[
        int, Field(ge=0, le=50, description="Further attempts after the GPU ran out of memory.")
    ] = 4
    backoff_seconds: Annotated[
        NonNegativeFloat,
        Field(description="Wait before the first of them; each further wait is twice as long."),
    ] = 30.0
    batch_seconds: Annotated[
        PositiveFloat,
        Field(description="Work of one Prefect task; about 0.3 s of it is overhead."),
    ] = 20.0
    results: Annotated[
        str | None,
        Field(
            description="Where Prefect keeps the results of finished batches: a folder that all "
            "workers share, or a saved storage block (type/name). In the run's scratch folder "
            "where not set."
        ),
    ] = None
    tile_timeout_seconds: Annotated[
        PositiveFloat,
        Field(
            description="Longest time of a tile in reading, in segmentation or in being committed; "
            "then its worker is ended, and the tile counts as failed."
        ),
    ] = 4 * 3600.0
    read_retries: Annotated[
        int, Field(ge=0, le=50, description="Further attempts after a remote store failed.")
    ] = 5
    read_backoff_seconds: Annotated[
        NonNegativeFloat,
        Field(description="Wait before the first of them; each further wait is twice as long."),
    ] = 1.0
    worker_timeout_seconds: Annotated[
        PositiveFloat, Field(description="Longest wait for the first worker of a cluster.")
    ] = 120.0
    samples: Annotated[
        Path | None, Field(description="Folder of the sample images; in the user's cache if unset.")
    ] = None
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Field(description="Of cytopave's messages.")
    ] = "INFO"


def load_settings() -> Settings:
    """The settings of this process's environment.

    Raises:
        UserError: A variable has a value that it cannot have; the message names all of them.
    """
    for name in os.environ:
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX).lower() not in _FIELDS:
            _warn_of(name)
    try:
        return Settings()
    except ValidationError as error:
        problems = (
            f"{_PREFIX}{str(e['loc'][0]).upper()}={e['input']!r}: {e['msg']}"
            for e in error.errors()
        )
        raise UserError("the environment cannot be used: " + "; ".join(problems)) from None


_FIELDS = frozenset(Settings.model_fields)


@functools.cache  # once a process: settings are read often
def _warn_of(name: str) -> None:
    _log.warning("%s is set, but there is no such setting%s", name, _hint(name))


def _hint(name: str) -> str:
    variables = [_PREFIX + field.upper() for field in _FIELDS]
    close = difflib.get_close_matches(name, variables, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
