"""Partial sums of the objects in one block: what of them can be added up over blocks, exactly.

Places are taken from runs of equal labels along the last axis, of which there are far fewer than
pixels. Counts and sums of places are integers. Second moments are taken about the mean of the
part itself, so that nothing is lost by subtracting large numbers; `combine` shifts them to the
mean of the whole object.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from cytopave.engine.errors import LabelError
from cytopave.engine.scratch.views import runs
from cytopave.engine.tables.hulls import POINT, row_ends


def row_dtype(ndim: int, dtypes: np.dtype, n_channels: int) -> np.dtype:
    """The type of a row: one object, or what a block holds of it.

    Args:
        ndim: Number of spatial axes d.
        dtypes: Type of the image's pixels.
        n_channels: Number of channels.

    Returns:
        Fields ``time``, ``label``, ``n`` (pixels), ``low`` and ``high`` (first and past last pixel
        along each axis), ``convex`` (pixels of the convex hull, which `measure_block` leaves 0: it
        is known once all parts are joined), ``place`` (sum of places, counted from ``low``),
        ``spread`` (the upper triangle of the matrix of second central moments, row by row), and for
        each channel ``total`` (exact for integers of up to 32 bits), ``power`` (sum of squared
        deviations from the mean), ``least`` and ``most``.
    """
    total = np.int64 if is_exact(dtypes) else np.float64
    return np.dtype(
        [
            ("time", np.int32),
            ("label", np.uint64),
            ("n", np.int64),
            ("low", np.int64, (ndim,)),
            ("high", np.int64, (ndim,)),
            ("convex", np.int64),
            ("place", np.int64, (ndim,)),
            ("spread", np.float64, (len(pairs(ndim)),)),
            ("total", total, (n_channels,)),
            ("power", np.float64, (n_channels,)),
            ("least", np.float64, (n_channels,)),
            ("most", np.float64, (n_channels,)),
        ]
    )


def is_exact(dtype: np.dtype) -> bool:
    """Whether sums of pixels of this type fit int64: integers of up to 32 bits, booleans."""
    return dtype.kind in "uib" and dtype.itemsize <= 4


def pairs(ndim: int) -> list[tuple[int, int]]:
    """The axes of each entry of ``spread``: (0, 0), (0, 1), ..., (1, 1), ..."""
    return list(itertools.combinations_with_replacement(range(ndim), 2))


def first_of_each(keys: np.ndarray) -> np.ndarray:
    """Where each run of equal keys begins; keys are sorted."""
    change = np.ones(len(keys), bool)
    change[1:] = keys[1:] != keys[:-1]
    return np.flatnonzero(change)


class Sums(NamedTuple):
    """What a block holds of its objects.

    Attributes:
        rows: One of `row_dtype` an object, by increasing id.
        points: Rows of pixels of type `cytopave.engine.tables.hulls.POINT`; none in stacks.
    """

    rows: np.ndarray
    points: np.ndarray


def measure_block(
    labels: np.ndarray, pixels: np.ndarray, *, start: tuple[int, ...], time: int = 0
) -> Sums:
    """Partial sums of the objects in a block.

    Args:
        labels: ``([Z], Y, X)`` integers, 0 the background.
        pixels: ``(C, [Z], Y, X)`` the same region of the image.
        start: First pixel of the block in the image.
        time: Index of the time point, kept in the rows.

    Raises:
        LabelError: An id is negative.
    """
    if labels.dtype.kind == "i" and labels.min(initial=0) < 0:
        raise LabelError(
            f"the labels hold the id {labels.min()}: ids are 0 for the background and positive "
            "for objects"
        )
    label, begin, length = runs(labels)
    dtype = row_dtype(labels.ndim, pixels.dtype, len(pixels))
    if not len(label):
        return Sums(np.empty(0, dtype), np.empty(0, POINT))
    order = np.argsort(label, kind="stable")
    first = first_of_each(label[order])
    rows = np.empty(len(first), dtype)
    rows["time"], rows["label"] = time, label[order][first]
    rows["n"] = np.add.reduceat(length[order], first)
    rows["convex"] = 0
    unsorted = zip(np.unravel_index(begin, labels.shape), start, strict=True)
    places = [(p + a)[order] for p, a in unsorted]
    _measure_places(places, length[order], first, rows)
    inside = labels.ravel() > 0
    _measure_pixels(pixels.reshape(len(pixels), -1), inside, length, order, first, rows)
    if labels.ndim != 2:
        return Sums(rows, np.empty(0, POINT))
    y, x = places
    return Sums(rows, row_ends(label[order], y, x, length[order], time=time))


def _measure_places(
    places: list[np.ndarray], length: np.ndarray, first: np.ndarray, rows: np.ndarray
) -> None:
    """Fill in what depends on places alone, from runs sorted by object.

    A run of length n whose middle is c from the mean adds n c^2 + n (n^2 - 1) / 12 to the second
    moment along it.
    """
    number = np.diff(first, append=len(length))
    middles = []
    for axis, place in enumerate(places):
        along = axis == len(places) - 1
        rows["low"][:, axis] = low = np.minimum.reduceat(place, first)
        end = place + length if along else place + 1
        rows["high"][:, axis] = np.maximum.reduceat(end, first)
        own = place - np.repeat(low, number)
        twice = length * (2 * own + (length - 1 if along else 0))  # an even number in all cases
        rows["place"][:, axis] = total = np.add.reduceat(twice // 2, first)
        middle = own + (length - 1) / 2 if along else own
        middles.append(middle - np.repeat(total / rows["n"], number))
    for entry, (a, b) in enumerate(pairs(len(places))):
        moment = length * middles[a] * middles[b]
        if a == b == len(places) - 1:
            moment += length * (length.astype(float) ** 2 - 1) / 12
        rows["spread"][:, entry] = np.add.reduceat(moment, first)


def _measure_pixels(
    pixels: np.ndarray,
    inside: np.ndarray,
    length: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Fill in each channel's sums. Not-a-number and infinity carry through, as in NumPy."""
    begin = np.cumsum(length) - length  # of each run, among the objects' pixels
    number = np.diff(first, append=len(length))
    exact = is_exact(pixels.dtype)
    mean_of_run = np.empty(len(length))
    for channel, plane in enumerate(pixels):
        values = plane[inside]
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        for name, function in (("least", np.minimum), ("most", np.maximum)):
            found = function.reduceat(values, begin)[order]
            rows[name][:, channel] = function.reduceat(found, first)
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.add.reduceat(values, begin, dtype=np.int64 if exact else np.float64)
            rows["total"][:, channel] = np.add.reduceat(total[order], first)
            mean = rows["total"][:, channel] / rows["n"]
            mean_of_run[order] = np.repeat(mean, number)
            deviation = values - np.repeat(mean_of_run, length)
            np.square(deviation, out=deviation)
            power = np.add.reduceat(deviation, begin)[order]
        rows["power"][:, channel] = np.add.reduceat(power, first)
