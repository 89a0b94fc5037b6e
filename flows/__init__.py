"""Prefect flows: what happens, in order."""

from cytopave.flows.measure import measure_cells
from cytopave.flows.segment import segment_image

__all__ = ["measure_cells", "segment_image"]
