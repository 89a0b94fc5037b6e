"""Prefect flows: what happens, in order."""

from cytopave.flows.atlas import preprocess_atlas
from cytopave.flows.segment import segment_image

__all__ = ["preprocess_atlas", "segment_image"]
