"""Which chunk of an array it is that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cytopave.engine.boxes import halves
from cytopave.engine.omezarr.blosc import CORRUPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.engine.boxes import Box

# Other errors than these may not come back on a retry.
DAMAGE = (ValueError, RuntimeError, TypeError, LookupError, *CORRUPT)


def first_damaged(
    read: Callable[[Box], object], box: Box, chunks: tuple[int, ...], error: Exception
) -> tuple[Box, Exception]:
    """The first chunk of a box that cannot be read, or the part of it that lies in the box.

    Args:
        read: Reads a box.
        box: One that could not be read.
        chunks: Shape of a chunk.
        error: What reading it raised.

    Returns:
        The chunk, and what reading that raises.
    """
    while parts := halves(box, chunks):
        _, box, rest = parts
        try:
            read(box)
        except DAMAGE as found:
            error = found
        else:
            box = rest
    return box, error
