"""The segmenter that options describe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import (
    Cellpose,
    Custom,
    Segmenter,
    SegmenterBase,
    StarDist,
    Stored,
    Threshold,
    TorchNetwork,
    Watershed,
)

if TYPE_CHECKING:
    from cytopave.deployments.cli.options import Request

_KINDS: dict[str, type[SegmenterBase]] = {
    "cellpose": Cellpose,
    "threshold": Threshold,
    "watershed": Watershed,
    "stardist": StarDist,
    "torch": TorchNetwork,
    "custom": Custom,
    "stored": Stored,
}


_FUNCTIONS = {
    "function": "--function ",
    "network": "--set network=",
    "labels": "--set labels=",
}
"""Fields that name a function, and how they are given."""


def build_segmenter(request: Request) -> Segmenter:
    """The segmenter that the options name, with its fields set.

    Raises:
        SegmenterError: There is no such method or field, or a value does not fit.
    """
    kind = request.segmenter or ("custom" if request.function else "cellpose")
    known = _known(kind)
    named = {"function": request.function, "model": request.model, "diameter": request.diameter}
    values: dict[str, Any] = {k: v for k, v in named.items() if v is not None}
    for name in values:
        if name not in known:
            raise SegmenterError(f"--{name} does not apply to the segmenter '{kind}': leave it out")
    if kind == "stardist" and "model" not in values:
        raise SegmenterError("the segmenter 'stardist' needs --model, the folder of its network")
    if kind == "custom" and "function" not in values:
        raise SegmenterError("the segmenter 'custom' needs --function package.module:name")
    raw: dict[str, str] = {}
    for entry in request.set:
        key, text = _pair(entry)
        if key.partition(".")[0] not in known:
            raise SegmenterError(
                f"the segmenter '{kind}' has no option '{key}' (--set {entry}): its options are "
                f"{', '.join(known)}"
            )
        raw[key] = text
        _place(values, key, _parsed(text))
    if kind == "torch" and not {"network", "labels"} <= values.keys():
        raise SegmenterError(
            "the segmenter 'torch' needs two functions: --set network=package.module:build and "
            "--set labels=package.module:name"
        )
    return _validated(kind, values, raw)


def _known(kind: str) -> list[str]:
    """Fields that can be set: all but those that are filled in."""
    return [
        name
        for name, field in _KINDS[kind].model_fields.items()
        if name != "kind" and not _filled_in(field.json_schema_extra)
    ]


def _filled_in(extra: object) -> bool:
    return isinstance(extra, dict) and bool(extra.get("readOnly"))


def _pair(entry: str) -> tuple[str, str]:
    key, equals, text = entry.partition("=")
    if not equals or not key.strip():
        raise SegmenterError(f"--set {entry} is not understood: write key=value")
    return key.strip(), text.strip()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _place(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a field, or an entry of a field that is a table: ``kwargs.sigma``."""
    *outer, last = key.split(".")
    for name in outer:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise SegmenterError(f"--set {key}=... does not fit: {name} is set to {inner!r}")
        values = inner
    values[last] = value


def _validated(kind: str, values: dict[str, Any], raw: dict[str, str]) -> Segmenter:
    adapter: TypeAdapter[Segmenter] = TypeAdapter(Segmenter)
    try:
        return adapter.validate_python({"kind": kind, **values})
    except ValidationError as error:
        problems = error.errors()
        # Text that happens to be JSON, such as a model called 2024, where text is wanted.
        names = [str(p["loc"][1]) for p in problems if _wants_text(p)]
        texts = {name: raw.get(name) for name in names}
        if texts and None not in texts.values():
            return _validated(kind, {**values, **texts}, {})
        first = problems[0]
        field = ".".join(str(part) for part in first["loc"][1:]) or "the options"
        if first["type"] == "string_pattern_mismatch" and field in _FUNCTIONS:
            raise SegmenterError(
                f"{_FUNCTIONS[field]}{first['input']} is not understood: write package.module:name"
            ) from None
        raise SegmenterError(
            f"the segmenter '{kind}' cannot have {field}={first['input']!r}: {first['msg']}"
        ) from None


def _wants_text(problem: Any) -> bool:
    return problem["type"] == "string_type" and len(problem["loc"]) == 2
