from __future__ import annotations

import pytest
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from cytopave.tasks.embedded import embedded_flow


@embedded_flow(name="frequency")
def frequency() -> int | None:
    """Seconds between the heartbeats of this run, if it has any."""
    return get_current_settings().flows.heartbeat_frequency


@pytest.mark.parametrize("known", [False, True])
def test_only_an_api_that_outlives_the_run_hears_heartbeats(prefect_api: str, known: bool) -> None:
    before = get_current_settings().flows.heartbeat_frequency
    with temporary_settings({PREFECT_API_URL: prefect_api} if known else {}):
        assert frequency() == (before if known else None)
    assert before is not None
    assert get_current_settings().flows.heartbeat_frequency == before
