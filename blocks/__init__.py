"""What a site configures once. Light imports only: Prefect imports this package at start-up."""

from cytopave.blocks.cluster import Cluster

__all__ = ["Cluster"]
