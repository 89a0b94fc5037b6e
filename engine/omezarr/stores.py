"""Addresses: paths, URLs, and stores with a name: ``store://name/path`` and no credentials.

Only whoever configures a site knows what a name means; the engine is told by `register`. Plans,
reports and messages hold the name: what it takes to open the store stays out of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from cytopave.engine.errors import UserError

SCHEME = "store://"

type Opener = Callable[[str], tuple[str, Mapping[str, Any]]]
"""From a store's name to its URL and to what fsspec needs to open it."""

_openers: list[Opener] = []


def register(opener: Opener) -> None:
    """Have names of stores looked up by this function from now on."""
    _openers[:] = [opener]


def located(url: str, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A URL and the options to open it with; those of the store where the URL names one.

    Raises:
        UserError: There is no store of that name, or the path leaves it.
    """
    if not url.startswith(SCHEME):
        return url, options
    name, _, path = url.removeprefix(SCHEME).partition("/")
    if not name or ".." in path.split("/"):
        raise UserError(f"{url} names nothing: write {SCHEME}NAME/path/in/the/store")
    if not _openers:
        raise UserError(f"{url} cannot be looked up here: give the address of the store itself")
    root, found = _openers[0](name)
    return f"{root.rstrip('/')}/{path}".rstrip("/"), found


def absolute(url: str | os.PathLike[str]) -> str:
    """A local path made absolute (``~`` and ``file://`` resolved); any other URL as it is.

    Raises:
        UserError: It is empty, which would mean the folder that one happens to be in.
    """
    text = os.fspath(url)
    if not text.strip():
        raise UserError("an empty text names no file, folder or URL: give its name")
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    if "://" in text or "::" in text:
        return text.rstrip("/") if not text.endswith("://") else text
    return os.path.abspath(os.path.expanduser(text))
