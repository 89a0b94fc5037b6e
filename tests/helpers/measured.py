"""Measurements in this process, by the engine's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.engine.tables import stages
from cytopave.engine.tables.planner import plan_measurement

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.tables.measurement import Measurement


def measure_here(measurement: Measurement) -> int:
    """All stages; returns the number of rows."""
    measurement.target.check()
    for group in range(len(measurement.groups)):
        stages.measure_group(measurement, group)
    n = stages.write_table(measurement, {})
    measurement.target.publish()
    return n


def measured(image: Path | str, labels: Path | str, **request: Any) -> Measurement:
    """Plan and carry out."""
    measurement = plan_measurement(str(image), labels=str(labels), **request)
    measure_here(measurement)
    return measurement
