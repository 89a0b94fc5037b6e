"""What a site configures once. Light imports only: Prefect imports this package at start-up."""

from cytopave.blocks.cluster import Cluster
from cytopave.blocks.images import ImageStore
from cytopave.blocks.models import CellposeModel

__all__ = ["CellposeModel", "Cluster", "ImageStore"]
