"""Keeping memory that was freed, so that the next tile does not have to get it again.

The C library gives large arrays back to the system when they are freed, and takes them anew, page
by page and zeroed, for the next tile. Dask makes that worse: it has its workers return all but
64 KB. Where every tile needs the same few arrays this is pure loss: a tenth of a merge's time.
"""

from __future__ import annotations

import ctypes
from functools import cache

_KEPT = 128 << 20
"""Bytes of freed memory that a process keeps at most."""
_LARGEST = 32 << 20
"""Bytes of an array that may be kept; the most that glibc takes for this."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@cache
def keep_freed_memory() -> bool:
    """Have this process keep up to 128 MB of what it frees.

    Returns:
        Whether it does: False where the C library is not glibc, and nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
