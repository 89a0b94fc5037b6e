"""Functions that are named by where they are imported from, and the same on every worker."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue

from cytopave.engine.errors import SegmenterError

if TYPE_CHECKING:
    from types import ModuleType

PATTERN = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$"

SourceHash = Annotated[
    str | None,
    Field(
        json_schema_extra={"readOnly": True},
        description="Filled in: hash of the file that defines the function.",
    ),
]


def checked_hash(name: str, kwargs: dict[str, JsonValue], *, given: str) -> str | None:
    """Import a function, check its arguments, and hash the file that defines it.

    Args:
        name: ``package.module:name``.
        kwargs: Keyword arguments of every call.
        given: What messages call the first argument.

    Raises:
        SegmenterError: No such module or name, not callable, or it does not take the kwargs.
    """
    function = _import(name)
    try:
        inspect.signature(function).bind(object(), **kwargs)
    except TypeError as error:
        raise SegmenterError(
            f"{name} cannot be called as f({given}, {_listed(kwargs)}): {error}; "
            "correct kwargs or the function"
        ) from None
    except ValueError:  # a function in C that does not tell its signature
        pass
    return _source_hash(function)


def load_function(name: str, sha256: str | None) -> Callable[..., Any]:
    """The function, which must be the one that was planned with.

    Args:
        name: ``package.module:name``.
        sha256: What `checked_hash` returned.

    Raises:
        SegmenterError: It cannot be imported on this worker, or from another file than planned.
    """
    function = _import(name)
    if sha256 is not None and _imported_hash(function) != sha256:
        raise SegmenterError(
            f"{name} on this worker is not the function that was planned with: "
            "install the same version on every worker, and restart workers that imported it "
            "before it was edited"
        )
    return function


def _import(function: str) -> Callable[..., Any]:
    module_name, _, path = function.partition(":")
    if module_name == "__main__":
        raise SegmenterError(
            f"{function} lives in a script or notebook, which workers cannot import: "
            "move the function into a module"
        )
    value: Any = _import_module(module_name, function)
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise SegmenterError(
                f"there is no {path!r} in the module {module_name!r}: check the part after "
                "the colon"
            ) from None
    if not callable(value):
        raise SegmenterError(
            f"{function} is a {type(value).__name__} and not a function: name something "
            "that can be called"
        )
    return value  # type: ignore[no-any-return]


def _import_module(name: str, function: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise SegmenterError(
                f"{function} cannot be imported, since the module {name!r} itself needs "
                f"{error.name!r}: install it where cytopave and its workers run"
            ) from error
        raise SegmenterError(
            f"there is no module {error.name!r} (asked for by {function}): install it where "
            "cytopave and its workers run, or put its folder on PYTHONPATH"
        ) from None
    except Exception as error:
        raise SegmenterError(
            f"{function} cannot be imported: the module {name!r} fails with "
            f"{type(error).__name__}: {error}"
        ) from error


def _listed(kwargs: dict[str, JsonValue]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in kwargs.items())


def _source_hash(function: Callable[..., Any]) -> str | None:
    """SHA-256 of the file that defines a function, or None where no file does (a builtin)."""
    file = getattr(_module_of(function), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


_hashes: weakref.WeakKeyDictionary[ModuleType, str | None] = weakref.WeakKeyDictionary()


def _imported_hash(function: Callable[..., Any]) -> str | None:
    """The same for the code that this process runs: a file edited later does not change it."""
    module = _module_of(function)
    if module is None:
        return None
    if module not in _hashes:
        _hashes[module] = _source_hash(function)
    return _hashes[module]


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    plain = inspect.unwrap(function)
    while isinstance(plain, partial):
        plain = inspect.unwrap(plain.func)
    owner = plain if isinstance(getattr(plain, "__module__", None), str) else type(plain)
    return sys.modules.get(owner.__module__)
