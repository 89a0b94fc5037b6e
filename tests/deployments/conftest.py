"""Commands run in this process, where that shows the same, leave nothing of theirs behind."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
import worlds
from commands import Ended

from cytopave.deployments.cli.app import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commands import Command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs a command line in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    environ, logger = dict(os.environ), logging.getLogger("cytopave")
    state = (logger.handlers, logger.propagate, logger.level)

    def call(*tokens: str | Path) -> Ended:
        capfd.readouterr()
        status = run([str(token) for token in tokens])
        return Ended(status, *capfd.readouterr())

    yield call
    os.environ.clear()
    os.environ.update(environ)
    logger.handlers, logger.propagate, logger.level = state


@pytest.fixture
def truth() -> np.ndarray:
    return worlds.disks((500, 430), radius=8, pitch=25)


@pytest.fixture
def image(folder: Path, truth: np.ndarray) -> Path:
    """An OME-Zarr image of bright disks in noise, two levels."""
    noise = np.random.default_rng(0).integers(0, 200, truth.shape)
    pixels = ((truth > 0) * 1000 + noise).astype(np.uint16)
    return stores.ome_image(folder / "image.zarr", pixels, n_levels=2, chunks=(100, 100))
