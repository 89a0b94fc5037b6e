"""Plans that processes hand each other: files in a scratch folder, named by what is in them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from pydantic import BaseModel, ConfigDict

from cytopave.engine.scratch.archive import write_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER = "plans"


class Saved(BaseModel):
    """Everything that tasks need to know of a run, which they are given by the path of its file.

    Attributes:
        root: The run's scratch folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path

    def save(self) -> str:
        """Write it into its scratch folder; returns the path.

        Runs that differ in what follows, and share the folder for what they have in common, have
        files of their own.
        """
        text = self.model_dump_json(indent=1).encode()
        path = self.root / _FOLDER / f"{hashlib.sha256(text).hexdigest()[:16]}.json"
        write_bytes(path, text)
        return str(path)

    @classmethod
    def load(cls, path: str) -> Self:
        """A saved one; parsed once a process, since its content is in its name."""
        return cast("Self", _parsed(cls, path))

    @classmethod
    def all_in(cls, root: Path) -> Iterator[Self]:
        """Those that were saved in a scratch folder."""
        return (cls.load(str(path)) for path in sorted((root / _FOLDER).glob("*.json")))

    def loaded(self) -> None:
        """What is to be done once in each process that loads it; nothing, as a rule."""


@lru_cache(maxsize=8)
def _parsed(kind: type[Saved], path: str) -> Saved:
    saved = kind.model_validate_json(Path(path).read_bytes())
    saved.loaded()
    return saved
