"""Copies of a table in formats that are no AnnData: CSV and Parquet, a chunk of rows at a time."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import MissingExtraError, OutputError
from cytopave.engine.omezarr.folders import PART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cytopave.engine.tables.read import Table


def export_csv(table: Table, path: Path) -> None:
    """Write all columns as comma-separated values, a header first, numbers to their last digit.

    Raises:
        OutputError: The file cannot be written.
    """
    with _whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*table.obs, *table.features])
        for chunk in table.chunks():
            writer.writerows(zip(*(column.tolist() for column in chunk.values()), strict=True))


def export_parquet(table: Table, path: Path) -> None:
    """Write all columns as Parquet, a row group a chunk; ``cytopave`` in its metadata is JSON.

    Raises:
        MissingExtraError: pyarrow is not installed.
        OutputError: The file cannot be written.
    """
    _require_pyarrow()
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.Table.from_pydict(table.read(0, 0)).schema
    schema = schema.with_metadata({"cytopave": json.dumps(table.made)})
    with _whole(path) as part, pyarrow.parquet.ParquetWriter(part, schema) as writer:
        for chunk in table.chunks():
            writer.write_table(pyarrow.Table.from_pydict(chunk, schema=schema))


EXPORTS: dict[str, Callable[[Table, Path], None]] = {"csv": export_csv, "parquet": export_parquet}
"""What writes each format."""


def check_exports(paths: Mapping[str, Path], *, overwrite: bool) -> dict[str, Path]:
    """The files that are wanted; refused before anything is computed where one cannot be written.

    Args:
        paths: A file for each format of `EXPORTS` that is wanted.
        overwrite: Whether files that exist are replaced.

    Returns:
        Their absolute paths.

    Raises:
        MissingExtraError: A package that a format needs is not installed.
        OutputError: A file exists, or its folder does not.
    """
    wanted = {kind: path.expanduser().absolute() for kind, path in paths.items()}
    if "parquet" in wanted:
        _require_pyarrow()
    for path in wanted.values():
        if path.is_dir() or (path.exists() and not overwrite):
            raise OutputError(
                f"{path} exists: choose another file, or replace it (--overwrite)"
                if path.is_file()
                else f"{path} is a folder: name a file"
            )
        if not os.access(path.parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: {path.parent} is no folder to write to")
    return wanted


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(
            "Parquet files are written by pyarrow, which is not installed: install the extra "
            "cytopave[parquet], or export to CSV"
        )


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Any]:
    """A file that appears under its name when it is complete."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
