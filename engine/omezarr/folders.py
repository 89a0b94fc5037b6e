"""Folders of zarr nodes, local or behind fsspec: where URLs become files and arrays."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import fsspec
import zarr
from zarr.storage import FsspecStore

from cytopave.engine.errors import MissingExtraError, UserError
from cytopave.engine.omezarr import stores
from cytopave.engine.omezarr.blosc import guarded
from cytopave.engine.omezarr.patience import Patient, patiently
from cytopave.engine.omezarr.stores import absolute as absolute  # by its old name

METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
"""Names of files that describe a zarr node (the first for format 3, the others for format 2)."""

PART = ".cytopave-part"
"""End of the name of a file that is being written."""

# What filesystems call the thing that changes when a file is written; the first that is there.
_STAMPS = ("ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class Folder:
    """One folder of a store: reads and writes small files, opens arrays.

    Attributes:
        url: The store: an absolute local path or a URL that fsspec understands.
        options: What fsspec needs to open the URL.
        path: The folder inside the store; empty for the store itself.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.url, self.options, f"{self.path}/{name}".strip("/"))

    def __str__(self) -> str:
        return f"{self.url}/{self.path}" if self.path else self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rstrip("/").rsplit("/", 1)[-1]

    @property
    def local(self) -> Path | None:
        """The folder on this machine; None for a remote one."""
        return None if "://" in self.url or "::" in self.url else Path(self.url, self.path)

    @property
    def address(self) -> tuple[str, dict[str, Any]]:
        """The folder's own path or URL, and the options to open it with.

        Raises:
            UserError: The store is one that nobody has named.
        """
        url, options = stores.located(self.url, self.options)
        return f"{url}/{self.path}" if self.path else url, dict(options)

    def remote(self, name: str = "") -> tuple[Any, str]:
        """The fsspec filesystem, and the path in it of the folder or of a file in it.

        Raises:
            MissingExtraError: The package that serves the URL's protocol is not installed.
            UserError: fsspec knows no such protocol.
        """
        url, options = stores.located(self.url, self.options)
        try:
            system, root = fsspec.url_to_fs(url, **options)
        except ImportError as error:
            raise MissingExtraError(
                f"{self.url} cannot be opened: {error}; install the package it names "
                "(for s3:// the extra cytopave[s3])"
            ) from error
        except ValueError as error:
            raise UserError(f"{self.url} cannot be opened: {error}") from error
        return system, "/".join(part for part in (root.rstrip("/"), self.path, name) if part)

    def _ask[T](self, call: Callable[[], T], name: str = "") -> T:
        return patiently(call, f"{self}/{name}".rstrip("/"))

    def exists(self, name: str = "") -> bool:
        """Whether the folder, or a file or folder in it, is there."""
        if self.local:
            return os.path.lexists(self.local / name)
        system, path = self.remote(name)
        system.invalidate_cache()
        try:
            # exists() of some filesystems takes any failure for absence.
            self._ask(lambda: system.info(path), name)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """Content of a file; None where there is none."""
        try:
            if self.local:
                return (self.local / name).read_bytes()
            system, path = self.remote(name)
            return bytes(self._ask(lambda: system.cat_file(path), name))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None where there is no such file.

        Raises:
            UserError: The file holds no JSON object.
        """
        raw = self.read(name)
        if raw is None:
            return None
        try:
            content = json.loads(raw)
        except ValueError as error:
            raise UserError(f"{self}/{name} is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise UserError(f"{self}/{name} holds no JSON object")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a reader sees the old content or the new one, whole."""
        if not self.local:
            system, path = self.remote(name)
            system.pipe_file(path, content)
            return
        self.local.mkdir(parents=True, exist_ok=True)
        part = self.local / f".{name}.{uuid.uuid4().hex}{PART}"
        try:
            part.write_bytes(content)
            os.replace(part, self.local / name)
        finally:
            part.unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON object, atomically where the store can."""
        self.write(name, json.dumps(content, indent=2).encode())

    def remove(self) -> None:
        """Delete the folder and all it holds, if it is there."""
        if self.local:
            shutil.rmtree(self.local, ignore_errors=not self.local.exists())
        elif self.exists():
            system, path = self.remote()
            system.rm(path, recursive=True)

    def folders(self) -> list[str]:
        """Sorted names of the folders in this one; hidden ones left out."""
        return [name for name in self._folders() if not name.startswith(".")]

    def hidden(self) -> list[str]:
        """Sorted names of the hidden folders in this one; none where there is no such folder."""
        try:
            return [name for name in self._folders() if name.startswith(".")]
        except FileNotFoundError:
            return []

    def _folders(self) -> list[str]:
        if self.local:
            found = [e.name for e in os.scandir(self.local) if e.is_dir()]
        else:
            system, path = self.remote()
            found = [
                e["name"].rstrip("/").rsplit("/", 1)[-1]
                for e in self._ask(lambda: system.ls(path, detail=True))
                if e["type"] == "directory"
            ]
        return sorted(found)

    def files(self) -> Iterator[tuple[str, int, str]]:
        """All files below the folder: relative path, bytes, and a stamp that changes on writing."""
        if self.local:
            yield from _scan(str(self.local), "")
            return
        system, root = self.remote()
        system.invalidate_cache()
        for path, info in self._ask(lambda: system.find(root, detail=True)).items():
            stamp = next((info[key] for key in _STAMPS if info.get(key)), "")
            yield path.removeprefix(root).strip("/"), int(info.get("size") or 0), str(stamp)

    def changed(self) -> float | None:
        """When a file below the folder changed last, in seconds since 1970; None if unknown."""
        if self.local:
            paths = (os.path.join(self.local, name) for name, _, _ in self.files())
            # Not the time of its content, which a copy may keep.
            return max((os.stat(path).st_ctime for path in paths), default=None)
        system, root = self.remote()
        system.invalidate_cache()
        found = [_seconds(info) for info in system.find(root, detail=True).values()]
        return max((seconds for seconds in found if seconds is not None), default=None)

    def size(self) -> int:
        """Bytes of all files below the folder."""
        return sum(size for _, size, _ in self.files())

    def array(self, *, mode: Literal["r", "r+"] = "r") -> zarr.Array[Any]:
        """The zarr array that the folder is, kept open until its metadata are rewritten.

        On a remote store that is not noticed: `forget` there.
        """
        url, options = stores.located(self.url, self.options)
        return _array(url, self.path, mode, json.dumps(options, sort_keys=True), self._stamp())

    def _stamp(self) -> int:
        for name in ("zarr.json", ".zarray") if self.local else ():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return os.stat(os.path.join(self.url, self.path, name)).st_mtime_ns
        return 0

    @staticmethod
    def forget() -> None:
        """Let go of the arrays kept open."""
        _array.cache_clear()


# Opening takes 0.8 ms, reading a chunk 0.3 ms: without this, opening would dominate.
@lru_cache(maxsize=512)
def _array(
    url: str, path: str, mode: Literal["r", "r+"], options: str, stamp: int
) -> zarr.Array[Any]:
    del stamp  # tells apart what the same path held at different times
    storage = json.loads(options) or None
    if mode == "r" and ("://" in url or "::" in url):
        store = FsspecStore.from_url(url, storage_options=storage, read_only=True)
        return guarded(zarr.open_array(Patient(store), path=path, mode=mode))
    if mode == "r":
        return guarded(zarr.open_array(url, path=path, mode=mode, storage_options=storage))
    with _opening, zarr.config.set(_WRITING):
        return zarr.open_array(url, path=path, mode=mode, storage_options=storage)


# zarr's default pipeline starts a coroutine a chunk, which costs as much as compressing it.
_WRITING = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}
_opening = threading.Lock()  # zarr's settings belong to the process, not to a thread


def _seconds(info: Mapping[str, Any]) -> float | None:
    """When a remote file was written, by whatever its filesystem calls it."""
    for key in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _scan(root: str, prefix: str) -> Iterator[tuple[str, int, str]]:
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _scan(root, f"{prefix}{entry.name}/")
            else:
                status = entry.stat()
                yield f"{prefix}{entry.name}", status.st_size, str(status.st_mtime_ns)
