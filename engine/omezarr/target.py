"""Where something goes that is built out of sight and then published: what all of them share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.folders import Folder


class Target(BaseModel):
    """Where a run's result goes: a place on a shelf of a store; plain values, made once.

    Attributes:
        url: The store that gets ``<shelf>/<name>``.
        storage_options: What fsspec needs to open it.
        name: Name of the result.
        digest: Digest of the run: tells its unfinished result from others'.
        overwrite: Whether a result of that name is replaced.
        zarr_format: 2 or 3.
    """

    model_config = ConfigDict(frozen=True)

    shelf: ClassVar[str]
    """The folder of the store that holds what is of this kind."""
    noun: ClassVar[str]
    """What it is called in messages."""

    url: str
    storage_options: dict[str, Any]
    name: str
    digest: str
    overwrite: bool
    zarr_format: Literal[2, 3]

    @property
    def store(self) -> Folder:
        """The store's root."""
        return Folder(self.url, self.storage_options)

    @property
    def published(self) -> Folder:
        """Where the result is once published."""
        return self.store / self.shelf / self.name

    @property
    def staging(self) -> Folder:
        """Where it is before: hidden, and never listed."""
        return self.store / self.shelf / f".{self.name}.{self.digest[:8]}.staging"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around all that writes: what the system refuses becomes an `OutputError`."""
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"the {self.noun} {self.name!r} cannot be written to {self.store}: {error}"
            ) from error
