from __future__ import annotations

from pathlib import Path

import pytest

from cytopave.engine.errors import UserError
from cytopave.engine.settings import load_settings


def test_defaults() -> None:
    settings = load_settings()
    assert settings.scratch is None
    assert settings.gpu_memory_gb is None
    assert (settings.retries, settings.backoff_seconds, settings.batch_seconds) == (4, 30, 20)


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_SCRATCH", "/scratch/me")
    monkeypatch.setenv("CYTOPAVE_GPU_MEMORY_GB", "24")
    monkeypatch.setenv("CYTOPAVE_RETRIES", "0")
    settings = load_settings()
    assert settings.scratch == Path("/scratch/me")
    assert settings.gpu_memory_gb == 24
    assert settings.retries == 0


def test_all_bad_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_RETRIES", "many")
    monkeypatch.setenv("CYTOPAVE_GPU_MEMORY_GB", "-8")
    with pytest.raises(UserError) as caught:
        load_settings()
    message = str(caught.value)
    assert "CYTOPAVE_RETRIES='many': Input should be a valid integer" in message
    assert "CYTOPAVE_GPU_MEMORY_GB='-8': Input should be greater than 0" in message
    assert "\n" not in message


def test_a_misspelt_variable_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CYTOPAVE_RETIRES", "2")
    assert load_settings().retries == 4
    assert "CYTOPAVE_RETIRES is set" in caplog.text
    assert "did you mean CYTOPAVE_RETRIES?" in caplog.text
