"""Prefect flows: what happens, in order."""

from cytopave.flows.segment import segment_image
from cytopave.flows.sweep import sweep_images

__all__ = ["segment_image", "sweep_images"]
