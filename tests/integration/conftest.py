"""One Prefect server for all tests of a session that need a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, with the deployments of prefect.yaml, and a worker that runs them."""
    from server import Server

    home, images = tmp_path_factory.mktemp("prefect"), tmp_path_factory.mktemp("images")
    started = Server(home, images)
    try:
        started.start()
        yield started
    finally:
        started.stop()
