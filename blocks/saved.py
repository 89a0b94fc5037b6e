"""Saved blocks by name, without waiting for an API where there can be none of that name."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from prefect.settings import PREFECT_API_URL, get_current_settings
from pydantic import ValidationError

from cytopave.engine.errors import UserError

if TYPE_CHECKING:
    from prefect.blocks.core import Block

_SQLITE = "sqlite+aiosqlite:///"


def load_saved[B: Block](kind: type[B], name: str) -> B | None:
    """The block of a type that was saved under a name, or None where there is none.

    Without an API that is set, Prefect would start a temporary one to look it up, which takes many
    seconds: what was never saved on this machine is answered at once.

    Raises:
        UserError: The API does not answer, or the block does not fit this version of cytopave.
    """
    if not may_be_saved(name):
        return None
    url = PREFECT_API_URL.value()
    try:
        return kind.load(name, _sync=True)  # type: ignore[return-value, call-arg]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "its fields"
        raise UserError(
            f"the saved block {name!r} does not fit this version of cytopave ({field}: "
            f"{first['msg']}): save it anew"
        ) from error
    except ValueError:
        return None
    except (httpx.HTTPError, RuntimeError) as error:
        raise UserError(
            f"the saved block {name!r} cannot be looked up, since the Prefect API "
            f"({url or 'the temporary one of this process'}) does not answer: start it, or "
            "correct PREFECT_API_URL"
        ) from error


def may_be_saved(name: str) -> bool:
    """Whether a block of that name can be there: an API is set, or its database may hold one."""
    if PREFECT_API_URL.value():
        return True
    settings = get_current_settings()
    found = settings.server.database.connection_url
    url = found.get_secret_value() if found is not None else f"{_SQLITE}{settings.home}/prefect.db"
    if not url.startswith(_SQLITE):
        return True
    path = Path(url.removeprefix(_SQLITE).partition("?")[0]).expanduser()
    if not path.exists():
        return False
    query = "SELECT 1 FROM block_document WHERE name = ? LIMIT 1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query, (name,)).fetchone() is not None
    except (sqlite3.Error, ValueError):  # another layout or a lock: let Prefect look
        return True
