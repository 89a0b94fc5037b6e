from __future__ import annotations

import logging

import pytest

from cytopave.tasks import progress
from cytopave.tasks.progress import _Lines


@pytest.mark.parametrize(
    ("pause", "expected"),
    [(3600.0, [200]), (0.0, list(range(10, 201, 10)))],
    ids=["quick work", "slow work"],
)
def test_without_a_terminal_there_are_few_lines_and_one_at_the_end(
    pause: float,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", pause)
    lines = _Lines("tiles", 200)
    with caplog.at_level(logging.INFO, logger="cytopave.tasks.progress"):
        for done in range(1, 201):
            lines.show(done)
    assert caplog.messages == [f"tiles: {done} of 200" for done in expected]
