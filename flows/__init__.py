"""Prefect flows: what happens, in order."""

from cytopave.flows.housekeeping import clean_scratch
from cytopave.flows.segment import segment_image
from cytopave.flows.sweep import sweep_images

__all__ = ["clean_scratch", "segment_image", "sweep_images"]
