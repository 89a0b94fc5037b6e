"""Any function ``f(tile, **kwargs) -> labels`` that can be imported by name."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, JsonValue, PositiveFloat

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase

if TYPE_CHECKING:
    from types import ModuleType

    from cytopave.engine.omezarr.image import Image


class Custom(SegmenterBase):
    """A function of yours, named by where it is imported from.

    It gets one tile ``(C, [Z], Y, X)``, or ``([Z], Y, X)`` where one channel was selected, as an
    array of its own that it may write into, and returns integer labels ``([Z], Y, X)``, 0 being
    the background. It runs on the workers, so it has to be importable there.
    """

    kind: Literal["custom"] = "custom"
    function: Annotated[
        str,
        Field(
            pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$",
            description="'package.module:name'",
        ),
    ]
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for every call; JSON values."
    )
    gpu: Annotated[bool, Field(description="Whether the function computes on the GPU.")] = False
    diameter: Annotated[
        PositiveFloat | None,
        Field(description="Typical diameter of an object in pixels; sizes an automatic halo."),
    ] = None
    version: Annotated[
        str,
        Field(
            description="Change it when the function's results change and its own module does "
            "not: other modules, weights. Tiles of another version are computed again.",
        ),
    ] = ""
    source_sha256: Annotated[
        str | None,
        Field(
            json_schema_extra={"readOnly": True},
            description="Filled in: hash of the file that defines the function.",
        ),
    ] = None

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Import the function, check its arguments and hash the file that defines it.

        Raises:
            SegmenterError: No such module or name, not callable, or it does not take the kwargs.
        """
        function = self._import()
        try:
            inspect.signature(function).bind(np.empty(0), **self.kwargs)
        except TypeError as error:
            raise SegmenterError(
                f"{self.function} cannot be called as f(tile, {_listed(self.kwargs)}): {error}; "
                "correct kwargs or the function"
            ) from None
        except ValueError:  # a function in C that does not tell its signature
            pass
        return self.model_copy(update={"source_sha256": _source_hash(function)})

    def load(self) -> LabelFunction:
        """The function, with its arguments bound.

        Raises:
            SegmenterError: It cannot be imported on this worker, or from another file than planned.
        """
        function = self._import()
        if self.source_sha256 is not None and _imported_hash(function) != self.source_sha256:
            raise SegmenterError(
                f"{self.function} on this worker is not the function that was planned with: "
                "install the same version on every worker, and restart workers that imported it "
                "before it was edited"
            )
        return functools.partial(_call, function, self.kwargs)

    def without_effect(self) -> set[str]:
        """Hints for the planner."""
        return {"gpu", "diameter"}

    @property
    def diameter_px(self) -> float | None:
        """The diameter that was given."""
        return self.diameter

    @property
    def title(self) -> str:
        """Name for messages about what the function returned."""
        return f"the function {self.function}"

    @property
    def uses_gpu(self) -> bool:
        """Whether the function was said to compute on the GPU."""
        return self.gpu

    def _import(self) -> Callable[..., Any]:
        module_name, _, path = self.function.partition(":")
        if module_name == "__main__":
            raise SegmenterError(
                f"{self.function} lives in a script or notebook, which workers cannot import: "
                "move the function into a module"
            )
        value: Any = _import_module(module_name, self.function)
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
                f"{self.function} is a {type(value).__name__} and not a function: name something "
                "that can be called as f(tile, **kwargs)"
            )
        return value  # type: ignore[no-any-return]


def _call(
    function: Callable[..., Any], kwargs: dict[str, JsonValue], tile: np.ndarray
) -> np.ndarray:
    # A copy: a function that writes into its tile would falsify a second attempt at the same tile.
    return function(np.array(tile, order="C"), **kwargs)  # type: ignore[no-any-return]


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
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    owner = plain if isinstance(getattr(plain, "__module__", None), str) else type(plain)
    return sys.modules.get(owner.__module__)
