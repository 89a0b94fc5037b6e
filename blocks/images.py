"""Where images are: the ``ImageStore`` block, which ``store://name/path`` refers to."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, Final

from prefect.blocks.core import Block
from prefect.context import FlowRunContext, TaskRunContext
from prefect.types import SecretDict
from pydantic import ConfigDict, Field, JsonValue, field_validator

from cytopave.blocks.saved import load_saved
from cytopave.engine.errors import ImageError
from cytopave.engine.omezarr import stores

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET: Final = frozenset(
    {
        *("secret", "password", "account_key", "sas_token", "connection_string"),
        *("client_secret", "secret_key", "aws_secret_access_key"),
    }
)
_SECONDS_KEPT: Final = 600
"""How long a process uses a store's credentials before it looks for new ones."""


class ImageStore(Block):
    """A folder or bucket of images, and what it takes to open it.

    Saved as ``scans``, its image ``plate1/A1.zarr`` is ``store://scans/plate1/A1.zarr`` wherever an
    image, a folder of images, or the store that gets labels, is asked for. Credentials stay in the
    block.
    """

    _block_type_name = "cytopave image store"
    _block_type_slug = "cytopave-image-store"
    _description = "Where images are, and the credentials to read them."

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        description="Folder or bucket: a path that all workers see, or a URL such as "
        "s3://bucket/scans.",
        min_length=1,
    )
    storage_options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="What fsspec needs to open the URL and everybody may read: endpoint_url, anon.",
    )
    secrets: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        description="The same for what nobody may read: key, secret, token.",
    )

    @field_validator("url")
    @classmethod
    def _without_password(cls, value: str) -> str:
        if re.match(r"\w+://[^/]*@", value):
            raise ValueError("the URL holds a password: put it into secrets")
        if value.startswith(stores.SCHEME):
            raise ValueError(f"a store cannot be another one ({value}): give its own address")
        return value

    @field_validator("storage_options")
    @classmethod
    def _public(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if hidden := sorted(_SECRET & value.keys()):
            raise ValueError(f"{hidden[0]} is not for everybody to read: put it into secrets")
        return value

    def options(self) -> dict[str, Any]:
        """All that fsspec needs to open the URL, secrets in clear."""
        return {**self.storage_options, **self.secrets.get_secret_value()}

    def image(self, path: str = "") -> str:
        """What to give as an image: the URL of one in this store.

        Raises:
            ImageError: The block was not saved, so that workers could not find it.
        """
        name = self._block_document_name
        if name is None:
            raise ImageError(
                "this image store has no name yet: save it (store.save('scans')), then use it"
            )
        return f"{stores.SCHEME}{name}/{path}".rstrip("/")

    def findable(self) -> str:
        """The URL by which every process that asks the same API finds this store.

        A block that was not saved is saved, under a name made of its public fields: runs that
        are started elsewhere get its name and never its secrets. A folder needs no name.
        """
        if self._block_document_name is None:
            if "://" not in self.url:
                return stores.absolute(self.url)
            public = json.dumps([self.url, self.storage_options], sort_keys=True)
            name = f"inline-{hashlib.sha256(public.encode()).hexdigest()[:16]}"
            self.save(name, overwrite=True)
            _opened.pop(name, None)
        return self.image()


_opened: dict[str, tuple[float, tuple[str, Mapping[str, Any]]]] = {}


def open_store(name: str) -> tuple[str, Mapping[str, Any]]:
    """The address of a saved store, and what it takes to open it.

    Raises:
        ImageError: There is no store of that name.
        UserError: The API does not answer.
    """
    if name in _opened:
        since, found = _opened[name]
        # A thread that reads ahead has no run's context, and so no API to ask.
        asking = FlowRunContext.get() or TaskRunContext.get()
        if time.monotonic() - since < _SECONDS_KEPT or asking is None:
            return found
    block = load_saved(ImageStore, name)
    if block is None:
        raise ImageError(
            f"there is no image store {name!r}: save a 'cytopave image store' block of that name, "
            "or give the image's own path or URL"
        )
    _opened[name] = time.monotonic(), (block.url, block.options())
    return _opened[name][1]


def local_path(url: str | None) -> str | None:
    """The path that a URL means if it names an image of a local store; else the URL as it is.

    Raises:
        UserError: It names a store that is not there.
    """
    if url is None or not url.startswith(stores.SCHEME):
        return url
    address, _ = stores.located(url, {})
    address = stores.absolute(address)
    return url if "://" in address else address


def folder_url(folder: str | ImageStore) -> str:
    """The path or URL of a folder of images, for whoever opens it in whatever process.

    Args:
        folder: A path, a URL, ``store://name/folder``, or a store itself.

    Raises:
        UserError: It names a store that is not there.
    """
    url = folder.findable() if isinstance(folder, ImageStore) else folder
    return local_path(url) or url


def register() -> None:
    """Have this process look up names of stores among the saved blocks."""
    stores.register(open_store)
