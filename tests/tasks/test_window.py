from __future__ import annotations

from typing import TYPE_CHECKING

import ops_flows
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("prefect_api")


def executions(folder: Path) -> dict[str, int]:
    marks = [mark for mark in folder.iterdir() if mark.is_file()]
    return {mark.name: len(mark.read_text().splitlines()) for mark in marks}


def test_failures_and_deaths_are_outcomes(tmp_path: Path) -> None:
    items = ["a", "fail", "b", "kill", *"cdefgh"]
    state = ops_flows.window_flow(items, tmp_path, window=2, return_state=True)
    outcomes, most_at_once, most_kept = state.result()
    good = [item for item in items if len(item) == 1]
    assert {item: outcomes.pop(item) for item in good} == {g: (g.upper(), None) for g in good}
    assert outcomes.pop("fail") == (None, "ValueError: fail is bad")
    result, error = outcomes.pop("kill")
    assert result is None
    assert error is not None
    assert error.startswith("KilledWorker")
    assert not outcomes
    assert most_at_once == 2
    assert most_kept <= 2
    # A task that kills its worker gets one more; nobody else's work is repeated or blamed.
    assert executions(tmp_path) == dict.fromkeys(items, 1) | {"kill": 2}
    # The API has either heard that the worker died, or never of the task: none runs for ever.
    others = {"Completed": 8, "Failed": 1}
    runs = ops_flows.task_runs(state.state_details.flow_run_id, others)
    assert ops_flows.states_of(runs) in (others, others | {"Crashed": 1})


def test_a_consumer_may_stop(tmp_path: Path, dask_address: str) -> None:
    outcomes, most_at_once, _ = ops_flows.window_flow(
        list("abcdefgh"), tmp_path, window=2, cluster=dask_address, stop_after=3
    )
    assert len(outcomes) == 3
    assert most_at_once == 2
    assert set(executions(tmp_path)) <= set("abcd")


def test_no_items(tmp_path: Path, dask_address: str) -> None:
    assert ops_flows.window_flow([], tmp_path, window=2, cluster=dask_address).outcomes == {}
