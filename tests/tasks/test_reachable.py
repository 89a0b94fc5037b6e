"""An API that cannot be used is told of in one sentence, whatever is wrong with it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from cytopave.engine.errors import UserError
from cytopave.tasks.reachable import check_api, check_home
from cytopave.tasks.runner import embedded_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def answering(status: int, kind: str) -> Iterator[str]:
    """A web server that is no Prefect API: its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (200, "text/html; charset=utf-8", "page for people: the API's address ends with /api"),
        (401, "application/json", "lets nobody in without PREFECT_API_AUTH_STRING"),
        (404, "application/json", "answers with status 404: correct PREFECT_API_URL"),
    ],
)
def test_something_else_answers(status: int, kind: str, text: str) -> None:
    with (
        answering(status, kind) as url,
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(UserError, match=text),
    ):
        embedded_api()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:9/api", "no Prefect API answers at http://127.0.0.1:9/api: start it"),
        ("http://nowhere.invalid/api", "no Prefect API answers at http://nowhere.invalid/api"),
        ("127.0.0.1:4200", "PREFECT_API_URL=127.0.0.1:4200 is no address"),
    ],
)
def test_nobody_answers(url: str, text: str) -> None:
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(UserError, match=text):
        embedded_api()


def test_one_that_answers(prefect_api: str) -> None:
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        check_api(prefect_api)
        assert embedded_api() == prefect_api


def test_no_place_for_the_database_of_a_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = pytest.raises(UserError, match=r"file/home cannot be written \(Not a directory\)")
    with temporary_settings({PREFECT_HOME: tmp_path / "file" / "home"}), told:
        check_home()
    with temporary_settings({PREFECT_HOME: tmp_path / "new"}):
        check_home()
