"""What steps leave for the steps after them: a folder each, complete or not there."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from cytopave.engine.errors import CorruptError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A chunk of a column, or of rows of a narrow array: megabytes.
CHUNK = 1 << 18


@dataclass(frozen=True)
class Results:
    """The steps' folders below one scratch folder.

    What lies in them is written by anndata: arrays, sparse matrices, frames, text.

    Attributes:
        root: The scratch folder, which all workers share.
    """

    root: Path

    def has(self, name: str) -> bool:
        """Whether a step's results are there."""
        return (self.root / name).is_dir()

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """A new folder that gets its name when the block has ended well.

        Whoever else made the same results meanwhile made the same: the later one replaces them.

        Raises:
            OutputError: The scratch folder cannot be written to.
        """
        part = self.root / f".{name}.{uuid.uuid4().hex}.part"
        try:
            zarr.open_group(str(part), mode="w-", zarr_format=3)
            yield part
            _replace(part, self.root / name)
        except OSError as error:
            raise OutputError(
                f"the scratch folder {self.root} cannot be used ({error}): name one that can be "
                "written to (--scratch or CYTOPAVE_SCRATCH)"
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def read(self, name: str, key: str) -> Any:
        """One entry of a step's results, by anndata.

        Raises:
            CorruptError: It is not there, or damaged.
        """
        from anndata.io import read_elem

        try:
            return read_elem(zarr.open_group(str(self.root / name), mode="r")[key])
        except Exception as error:  # whatever anndata or zarr raise for it
            raise CorruptError(
                f"the results of the step {name} in {self.root} cannot be read ({key}: {error}): "
                "delete that folder, and the same command computes them again"
            ) from error

    def array(self, name: str, key: str) -> zarr.Array[Any]:
        """One array of a step's results, to be read in parts."""
        return zarr.open_array(str(self.root / name), path=key, mode="r")


def write_entries(folder: Path, entries: Mapping[str, Any]) -> None:
    """Write arrays, matrices, frames and text into a step's folder."""
    from anndata.io import write_elem

    group = zarr.open_group(str(folder), mode="a")
    for key, value in entries.items():
        write_elem(group, key, value)


def make_rows(folder: Path, key: str, shape: tuple[int, int], rows: int) -> None:
    """An empty float32 array whose chunks are blocks of rows, for workers to fill.

    Args:
        folder: The step's folder.
        key: Name of the array.
        shape: Rows and columns.
        rows: Rows of a chunk.
    """
    array = zarr.create_array(
        str(folder / key), shape=shape, chunks=(rows, shape[1]), dtype=np.float32, zarr_format=3
    )
    array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


def _replace(part: Path, final: Path) -> None:
    try:
        os.rename(part, final)
    except OSError:
        if not final.is_dir():
            raise
        aside = part.with_suffix(".old")
        os.rename(final, aside)
        os.rename(part, final)
        shutil.rmtree(aside, ignore_errors=True)
