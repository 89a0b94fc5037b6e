"""Prefect flows: what happens, in order."""

from cytopave.flows.atlas import preprocess_atlas
from cytopave.flows.convert import convert_images
from cytopave.flows.housekeeping import clean_scratch
from cytopave.flows.measure import measure_cells
from cytopave.flows.plate import segment_plate
from cytopave.flows.refine import refine_labels
from cytopave.flows.relate import relate_labels
from cytopave.flows.segment import segment_image
from cytopave.flows.sweep import sweep_images

__all__ = [
    "clean_scratch",
    "convert_images",
    "measure_cells",
    "preprocess_atlas",
    "refine_labels",
    "relate_labels",
    "segment_image",
    "segment_plate",
    "sweep_images",
]
