"""Joining the parts of objects: of neighbouring blocks in memory, of whole runs out of core."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import CorruptError
from cytopave.engine.tables.hulls import POINT, convex_pixels, join_rows
from cytopave.engine.tables.moments import first_of_each, pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_SAMPLES = 1 << 20  # keys that are looked at to cut a run into ranges


def combine(rows: np.ndarray) -> np.ndarray:
    """Join rows of the same object and time.

    Second moments are shifted from the mean of each part to that of the object (Chan, Golub and
    LeVeque, *The American Statistician* 37, 242-247, 1983, for any number of parts).

    Args:
        rows: Of `cytopave.engine.tables.moments.row_dtype`, in any order; rows of one object are
            joined in the order given.

    Returns:
        One row an object, by increasing time and id.
    """
    rows = rows[np.lexsort((rows["label"], rows["time"]))]
    first = first_of_each(rows[["time", "label"]])
    if len(first) == len(rows):
        return rows
    number = np.diff(first, append=len(rows))
    out = np.empty(len(first), rows.dtype)
    out["time"], out["label"] = rows["time"][first], rows["label"][first]
    out["n"] = np.add.reduceat(rows["n"], first)
    out["convex"] = 0
    for name, function in (
        ("low", np.minimum),
        ("high", np.maximum),
        ("total", np.add),
        ("least", np.minimum),
        ("most", np.maximum),
    ):
        with np.errstate(invalid="ignore", over="ignore"):
            out[name] = function.reduceat(rows[name], first)
    n, whole = rows["n"][:, None], out["n"][:, None]
    place = rows["place"] + n * (rows["low"] - np.repeat(out["low"], number, axis=0))
    out["place"] = np.add.reduceat(place, first)
    away = place / n - np.repeat(out["place"] / whole, number, axis=0)
    for entry, (a, b) in enumerate(pairs(away.shape[1])):
        moment = rows["spread"][:, entry] + rows["n"] * away[:, a] * away[:, b]
        out["spread"][:, entry] = np.add.reduceat(moment, first)
    with np.errstate(invalid="ignore", over="ignore"):
        off = rows["total"] / n - np.repeat(out["total"] / whole, number, axis=0)
        out["power"] = np.add.reduceat(rows["power"] + n * off**2, first)
    return out


def whole(rows: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The rows of whole objects, complete, from all their parts.

    Args:
        rows: As `combine` takes them.
        points: Their rows of pixels, in any order, where they lie in planes.
    """
    rows = combine(rows)
    if rows["low"].shape[1] == 2:
        rows["convex"] = convex_pixels(join_rows(points))
    return rows


def load_rows(path: Path) -> np.ndarray:
    """The rows of a file, mapped into memory.

    Raises:
        CorruptError: The file is missing or damaged.
    """
    try:
        return np.asanyarray(np.load(path, mmap_mode="r"))
    except (OSError, ValueError) as error:
        raise CorruptError(
            f"the scratch file {path} is missing or damaged ({error}); delete it and run again"
        ) from error


def merged(
    paths: Sequence[Path],
    *,
    at_once: int,
    join: Callable[..., np.ndarray] = combine,
    beside: Sequence[Path] = (),
) -> Iterator[np.ndarray]:
    """The joined rows of many files, a range of times and ids at a time.

    Memory does not grow with the number of rows: a range holds about ``at_once`` of them.

    Args:
        paths: Files of one sorted array of rows each.
        at_once: Rows to have in memory.
        join: Joins rows of the same time and id, of whatever type the files hold.
        beside: Files of the same parts' rows of pixels, or none; ``join`` takes these second.

    Yields:
        What ``join`` gives for all rows together, cut anywhere between two objects.

    Raises:
        CorruptError: A file is missing or damaged.
    """
    some = [i for i, path in enumerate(paths) if len(load_rows(path))]
    edges, spans = _ranges([paths[i] for i in some], at_once)
    for low, high in pairwise(edges):
        inside = [i for i, (a, b) in zip(some, spans, strict=True) if a < high and low <= b]
        rows = np.concatenate([_between(paths[i], low, high) for i in inside])
        if beside:
            points = [_between(beside[i], low, high) for i in inside]
            yield join(rows, np.concatenate([np.empty(0, POINT), *points]))
        else:
            yield join(rows)


def in_chunks(parts: Iterable[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """The same rows in arrays of ``length``, the last one shorter."""
    waiting: list[np.ndarray] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += len(part)
        if count < length:
            continue
        rows = np.concatenate(waiting)
        whole = count - count % length
        yield from np.split(rows[:whole], range(length, whole, length))
        waiting, count = [rows[whole:].copy()], count - whole
    if count:
        yield np.concatenate(waiting)


type _Key = tuple[int, int]
_END: _Key = (2**31, 0)


def _ranges(files: Sequence[Path], at_once: int) -> tuple[list[_Key], list[tuple[_Key, _Key]]]:
    """Keys between which about ``at_once`` rows lie, and the first and last key of each file."""
    step = max(1, sum(len(load_rows(path)) for path in files) // _SAMPLES)
    samples, spans = [], []
    for path in files:
        rows = load_rows(path)
        samples.append(rows[["time", "label"]][::step].copy())
        spans.append((_key(rows[0]), _key(rows[-1])))
    if not files:
        return [], []
    keys = np.concatenate(samples)
    keys = keys[np.lexsort((keys["label"], keys["time"]))][:: max(1, at_once // step)]
    edges = [_key(key) for key in keys[first_of_each(keys)]]
    # The files' first rows are all sampled: nothing comes before the first edge.
    return [*edges, _END], spans


def _between(path: Path, low: _Key, high: _Key) -> np.ndarray:
    rows = load_rows(path)
    begin, end = (bisect_left(rows, edge, key=_key) for edge in (low, high))
    return np.array(rows[begin:end])


def _key(row: Any) -> _Key:
    return int(row["time"]), int(row["label"])
