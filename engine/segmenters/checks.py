"""The gate that every label image passes: checked, and numbered densely."""

from __future__ import annotations

from typing import Any

import numpy as np

from cytopave.engine.errors import LabelError

LARGEST_ID = np.iinfo(np.int64).max


def checked(
    labels: Any, window_shape: tuple[int, ...], source: str
) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], int]:
    """Refuse what is not a label image of the window; number the objects densely.

    Args:
        labels: What a segmentation function returned.
        window_shape: Spatial shape of the tile that it was given, ``([Z], Y, X)`` pixels.
        source: Who returned it, for the message.

    Returns:
        The labels as a new C-contiguous uint32 array of that shape, with ids ``1..n`` in raster
        order of each object's first pixel, and ``n``.

    Raises:
        LabelError: It is not an array, or has another shape, type, negative ids or too large ones.
    """
    array = _label_array(labels, window_shape, source)
    if array.size == 0:
        return np.zeros(window_shape, np.uint32), 0
    low, high = int(array.min()), int(array.max())
    if low < 0:
        raise LabelError(
            f"{source} returned negative ids (down to {low}): objects are numbered from 1 and the "
            "background is 0"
        )
    if high > LARGEST_ID:
        raise LabelError(
            f"{source} returned the id {high}, which does not fit into 64 bits with a sign: "
            f"number the objects of a tile below {LARGEST_ID}"
        )
    return _dense(array)


def _label_array(
    labels: Any, window_shape: tuple[int, ...], source: str
) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(labels, np.ndarray):
        raise LabelError(
            f"{source} returned {_kind(labels)} instead of a numpy array of labels: return the "
            f"integer label image alone, of shape {window_shape}"
        )
    if isinstance(labels, np.ma.MaskedArray):
        raise LabelError(
            f"{source} returned a masked array, which does not say what masked pixels are: return "
            "labels.filled(0)"
        )
    if labels.dtype == np.bool_:
        raise LabelError(
            f"{source} returned a mask (bool), which does not tell objects apart: label its "
            "connected components, for example by skimage.measure.label"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise LabelError(
            f"{source} returned {labels.dtype} values: labels must be integers; if these are whole "
            "numbers, convert them with .astype('uint32')"
        )
    if labels.shape != window_shape:
        raise LabelError(
            f"{source} returned labels of shape {labels.shape} for a tile of spatial shape "
            f"{window_shape}: labels cover ([Z], Y, X) and have no channel axis"
        )
    return labels


def _kind(value: Any) -> str:
    if value is None:
        return "nothing (None)"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _dense(
    array: np.ndarray[Any, np.dtype[Any]],
) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], int]:
    import fastremap

    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    # numbers ids in the order in which a scan of the memory meets them: raster order
    numbered, ids = fastremap.renumber(native, preserve_zero=True)
    return numbered.astype(np.uint32), len(ids.keys() - {0})
