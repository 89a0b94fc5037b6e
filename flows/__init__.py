"""Prefect flows: what happens, in order."""

from cytopave.flows.plate import segment_plate
from cytopave.flows.segment import segment_image

__all__ = ["segment_image", "segment_plate"]
