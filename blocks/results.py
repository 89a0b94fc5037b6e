"""Where Prefect keeps the results of batches, as ``CYTOPAVE_RESULTS`` says: looked at beforehand.

Prefect itself logs an error where it cannot keep a result, and goes on: such a run would compute
everything anew after a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
from prefect.blocks.core import Block
from prefect.exceptions import ObjectNotFound
from prefect.filesystems import WritableFileSystem
from pydantic import ValidationError

from cytopave.blocks.saved import may_be_saved
from cytopave.engine.errors import UserError


def result_storage(results: str) -> Path | str:
    """What a setting means: a folder, or the name of a saved block (``type/name``)."""
    # Prefect's own way to name a saved block, which is no path that anybody would write.
    named = not results.startswith(("/", ".", "~")) and results.count("/") == 1
    return results if named else Path(results).expanduser().absolute()


def check_results(results: str | None, *, api: bool = True) -> None:
    """Refuse a place where no result could be kept.

    Args:
        results: The setting.
        api: Whether an API is there to be asked; without it, only what is certain is refused.

    Raises:
        UserError: The folder cannot be written, or no such storage block is saved.
    """
    if results is None:
        return
    storage = result_storage(results)
    if isinstance(storage, Path):
        _check_folder(storage, results)
    elif not may_be_saved(storage.partition("/")[2]):
        raise _unknown(results)
    elif api:
        _check_block(storage)


def _check_folder(folder: Path, results: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"Permission denied: {folder}")
    except OSError as error:
        raise UserError(
            f"CYTOPAVE_RESULTS={results} cannot be written ({error.strerror or error}): name a "
            "folder that all workers share, or a saved storage block as type/name"
        ) from error


def _check_block(name: str) -> None:
    try:
        block = Block.load(name, _sync=True)  # type: ignore[call-arg]
    except (httpx.HTTPError, RuntimeError, ValidationError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"CYTOPAVE_RESULTS={name} cannot be loaded: {why}") from error
    except (ValueError, KeyError, ObjectNotFound) as error:
        raise _unknown(name) from error
    if not isinstance(block, WritableFileSystem):
        raise UserError(
            f"CYTOPAVE_RESULTS={name} is a block that keeps no files: name one of a storage, such "
            "as local-file-system/NAME or s3-bucket/NAME"
        )


def _unknown(name: str) -> UserError:
    return UserError(
        f"CYTOPAVE_RESULTS={name} names a storage block that nobody saved (or whose package is not "
        "installed): save it, correct the name (type/name), or name a folder (./..., /...)"
    )
