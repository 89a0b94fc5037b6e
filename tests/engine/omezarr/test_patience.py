"""Stores that fail now and then, over real HTTP: what is asked again, and what is believed."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores

from cytopave.engine.boxes import Box
from cytopave.engine.errors import ImageError, StoreError
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.patience import is_transient, patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp; requirements/dev.txt")

SHAPE = (96, 96)
PIXELS = stores.pixels(SHAPE)


class Server:
    """Serves a folder; ``fault(path, n)`` says what the n-th request of a path meets."""

    def __init__(self) -> None:
        self.fault: Callable[[str, int], int | str | None] = lambda path, n: None
        self.asked: Counter[str] = Counter()
        self.url = ""


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    state = Server()
    lock = threading.Lock()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            with lock:
                state.asked[self.path] += 1
                fault = state.fault(self.path, state.asked[self.path])
            if isinstance(fault, int):
                self.send_error(fault)
            elif fault == "cut":
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(b"half of it")
            elif fault == "hang up":
                self.connection.close()
            else:
                super().do_GET()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("CYTOPAVE_READ_BACKOFF_SECONDS", "0.01")
    monkeypatch.setenv("CYTOPAVE_READ_RETRIES", "3")
    stores.ome_image(tmp_path / "image.zarr", PIXELS, chunks=(16, 16))
    Folder.forget()
    with serving(tmp_path) as server:
        yield server
    Folder.forget()


@pytest.mark.parametrize("fault", [503, 429, 500, "cut", "hang up"])
def test_every_file_fails_twice(server: Server, tmp_path: Path, fault: int | str) -> None:
    """Metadata, listings and chunks: as if nothing had happened."""

    def twice(path: str, n: int) -> int | str | None:
        # Only what is there can be cut off.
        return fault if n <= 2 and (fault != "cut" or (tmp_path / path[1:]).is_file()) else None

    server.fault = twice
    image = open_image(f"{server.url}/image.zarr")
    np.testing.assert_array_equal(image.read(Box.of(SHAPE)), PIXELS)
    chunks = {path: n for path, n in server.asked.items() if "/c/" in path}
    assert chunks == dict.fromkeys(chunks, 3)
    assert len(chunks) == 36


def test_a_chunk_that_never_comes(server: Server) -> None:
    image = open_image(f"{server.url}/image.zarr")
    server.fault = lambda path, n: 503 if path.endswith("/c/2/3") else None
    image.read(Box((0, 0), (32, 96)))
    with pytest.raises(StoreError, match=r"/c/2/3 cannot be read: .*503.*, 4 times; the same com"):
        image.read(Box.of(SHAPE))
    assert server.asked["/image.zarr/s0/c/2/3"] == 4


def test_what_a_store_refuses_is_not_asked_again(server: Server) -> None:
    server.fault = lambda path, n: 403
    with pytest.raises(ImageError, match=r"cannot be read: .*403.*check the address"):
        open_image(f"{server.url}/image.zarr")
    assert set(server.asked.values()) <= {1, 2}  # once by each question


def test_an_array_is_read_whatever_is_refused_around_it(server: Server, tmp_path: Path) -> None:
    """As by object stores that answer what is not there, and may not be listed, with 403."""
    stores.plain_array(tmp_path / "plain.zarr", PIXELS)
    server.fault = lambda path, n: None if path.startswith("/plain.zarr") else 403
    image = open_image(f"{server.url}/plain.zarr")
    np.testing.assert_array_equal(image.read(Box.of(SHAPE)), PIXELS)
    assert server.asked["/zarr.json"] == 1


@pytest.mark.parametrize("name", ["NoCredentialsError", "PartialCredentialsError"])
def test_keys_that_are_not_there_do_not_come_by_waiting(name: str) -> None:
    # As botocore has them, which is none of what the tests install.
    missing = type(name, (Exception,), {"__module__": "botocore.exceptions"})
    assert not is_transient(missing("Unable to locate credentials"))
    other = type("EndpointConnectionError", (Exception,), {"__module__": "botocore.exceptions"})
    assert is_transient(other("Could not connect"))
    asked = []

    def ask() -> None:
        asked.append(name)
        raise missing("Unable to locate credentials")

    with pytest.raises(StoreError, match=r"s3://b/x cannot be read: .*check the address and what"):
        patiently(ask, "s3://b/x")
    assert asked == [name]


def test_what_is_not_there_is_believed(server: Server) -> None:
    with pytest.raises(ImageError, match="there is no image at"):
        open_image(f"{server.url}/absent.zarr")
    # A chunk that is not there holds nothing but the fill value.
    server.fault = lambda path, n: 404 if "/c/0/" in path else None
    image = open_image(f"{server.url}/image.zarr")
    pixels = image.read(Box.of(SHAPE))
    assert not pixels[:16].any()
    np.testing.assert_array_equal(pixels[16:], PIXELS[16:])
    assert {n for path, n in server.asked.items() if "/c/0/" in path} == {1}


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_READ_RETRIES", "1")
    monkeypatch.setenv("CYTOPAVE_READ_BACKOFF_SECONDS", "0")
    with pytest.raises(ImageError, match=r"cannot be read: .*2 times"):
        open_image("http://127.0.0.1:9/image.zarr")
