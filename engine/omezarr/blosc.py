"""Damaged chunks: what codecs raise, and truncated Blosc chunks, noticed before they are decoded.

Blosc trusts the length in a chunk's header. Of a file that is shorter (a copy cut off, a disk that
was full) it decodes what lies behind in memory, silently, wherever pixels were stored
uncompressed. OME-Zarr 0.4 is mostly Blosc, so that the length is compared here first. Seen with
numcodecs 0.17.1. Chunks in shards need no such care: a shard ends with a checked index.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from typing import TYPE_CHECKING, Any

import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec
from zarr.storage import WrapperStore

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

CORRUPT = (zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError)
"""What codecs raise for truncated or altered bytes, besides Python's everyday errors."""

_HEADER = 16  # bytes, of which the last four are the length of all


class WholeBlosc(WrapperStore[Store]):
    """A store that refuses to give a Blosc chunk shorter than its header says."""

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Content of a file.

        Raises:
            ValueError: It is a chunk, and truncated.
        """
        value = await super().get(key, prototype, byte_range)
        return value if byte_range else _checked(key, value)

    def get_sync(self, key: str, **kwargs: Any) -> Buffer | None:
        """The same, for pipelines that read without an event loop."""
        value = super().get_sync(key, **kwargs)
        return value if kwargs.get("byte_range") else _checked(key, value)


def guarded(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """The same array, so opened that truncated Blosc chunks are errors; itself if it has none."""
    compressor: Any = array.compressors[-1] if array.compressors else None
    is_blosc = isinstance(compressor, BloscCodec) or (
        getattr(compressor, "codec_id", None) == "blosc"
    )
    if not is_blosc or array.shards:
        return array
    return zarr.open_array(WholeBlosc(array.store), path=array.path, mode="r")


def _checked(key: str, value: Buffer | None) -> Buffer | None:
    if value is None or key.rsplit("/", 1)[-1] in ("zarr.json", ".zarray", ".zattrs"):
        return value
    header = value[:_HEADER].to_bytes()
    length = int.from_bytes(header[12:], "little")
    if len(header) < _HEADER or len(value) < length:
        raise ValueError(f"the file of chunk {key} has {len(value)} of {length} bytes")
    return value
