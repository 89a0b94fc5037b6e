"""Remote stores that fail now and then: asked again, a few times, with longer and longer waits.

What is asked again is one file or one range, not the whole region that needs it: of a region of
hundreds of chunks, one always fails. A store that says no (not found, not allowed) is believed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
import time
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store
from zarr.storage import WrapperStore

from cytopave.engine.errors import StoreError
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

_log = logging.getLogger(__name__)

_LONGEST_WAIT = 60.0  # seconds
_JITTER = 0.3
"""Waits vary by up to this share, so that workers that failed together do not return together."""

# Timeout, too early, too many requests, and what servers say when they or those behind them fail.
_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_ERRNOS = frozenset(
    {
        *(errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EPIPE, errno.ETIMEDOUT, errno.ENETDOWN),
        *(errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET),
    }
)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")
"""Botocore's, for keys that are not there: waiting brings none."""
# Libraries whose own exceptions, where they carry no status, are about a broken connection.
_NETWORK = ("aiohttp", "httpx", "requests", "urllib3", "botocore", "aiobotocore")


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later.

    fsspec tells what failed as something else (a file that is not there, say): what led to an
    exception counts too.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        verdict = _verdict(current)
        if verdict is not None:
            return verdict
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return False


def patiently[T](call: Callable[[], T], what: object) -> T:
    """Call, again if need be, what asks a remote store.

    Args:
        call: Asks once.
        what: What is asked for, for messages.

    Raises:
        StoreError: The store failed as often as it was asked, or refused.
        OSError: Whatever else stays, as it was raised: that there is no such file, say.
    """
    attempts = _Attempts(what)
    while True:
        try:
            return call()
        except Exception as error:
            wait = attempts.after(error)
            if wait is None:
                raise
        time.sleep(wait)


class Patient(WrapperStore[Store]):
    """A zarr store whose reads are tried again."""

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Content of a file, or of a range of it; None where there is none.

        Raises:
            StoreError: The store failed as often as it was asked, or refused.
        """
        attempts = _Attempts(f"{getattr(self._store, 'path', self._store)}/{key}")
        while True:
            try:
                return await super().get(key, prototype, byte_range)
            except Exception as error:
                wait = attempts.after(error)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Contents of ranges, each by `get`."""
        asked = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*asked))

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], **options: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Contents of ranges of one file, merged as zarr sees fit, each by `get`."""
        options = {name: value for name, value in options.items() if value is not None}
        async for part in Store.get_ranges(self, key, byte_ranges, **options):
            yield part


class _Attempts:
    """How often something was asked for in vain."""

    def __init__(self, what: object) -> None:
        self._what = what
        self._failed = 0

    def after(self, error: Exception) -> float | None:
        """Seconds until the next attempt; None if the error stays what it is.

        Raises:
            StoreError: That was the last attempt, or the store refused.
        """
        if not is_transient(error):
            if isinstance(error, OSError) or not _is_of_the_network(error):
                return None
            raise StoreError(
                f"{self._what} cannot be read: {_line(error)}; check the address and what is "
                "allowed there"
            ) from error
        self._failed += 1
        settings = load_settings()  # only when something failed
        if self._failed > settings.read_retries:
            raise StoreError(
                f"{self._what} cannot be read: {_line(error)}, {self._failed} times; the same "
                "command tries again (CYTOPAVE_READ_RETRIES allows for more)"
            ) from error
        wait = min(_LONGEST_WAIT, settings.read_backoff_seconds * 2.0 ** (self._failed - 1))
        wait *= 1 + random.uniform(-_JITTER, _JITTER)
        _log.warning("%s: %s; trying again in %.1f s", self._what, _line(error), wait)
        return wait


def _verdict(error: BaseException) -> bool | None:
    """Whether an exception is about what passes; None where it does not tell."""
    status = _status(error)
    if status is not None:
        return status in _STATUSES
    resolved = error if isinstance(error, socket.gaierror) else getattr(error, "os_error", None)
    if isinstance(resolved, socket.gaierror):
        return resolved.errno == socket.EAI_AGAIN  # else there is no such host
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno is not None and error.errno in _ERRNOS:
        return True
    if type(error).__name__ in _CREDENTIALS:
        return False
    if isinstance(error, ValueError) or not _is_of_the_network(error):  # a bad URL is a ValueError
        return None
    return True


def _status(error: BaseException) -> int | None:
    """The HTTP status that an exception carries, in the libraries' different ways."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _is_of_the_network(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _NETWORK


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
