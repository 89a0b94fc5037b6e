"""Prefect flows: what happens, in order."""

from cytopave.flows.atlas import preprocess_atlas
from cytopave.flows.measure import measure_cells
from cytopave.flows.segment import segment_image

__all__ = ["measure_cells", "preprocess_atlas", "segment_image"]
