"""What a Cellpose network takes of a GPU on the stock path, read off the weights."""

from __future__ import annotations

from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.memory import (
    CPNET_PATCH_BYTES,
    Footprint,
    transformer_patch_bytes,
)


def cellpose_footprint(
    network: weights.Network | None,
    *,
    bfloat16: bool,
    batch_size: int,
    volume: bool,
    flow_check: bool,
) -> Footprint:
    """The counted tensors of a network.

    Args:
        network: What is known of the weights; None: those of ViT-L.
        bfloat16: Whether it computes in 16 bits.
        batch_size: Patches at a time.
        volume: Whether flows are found in three dimensions.
        flow_check: Whether objects are checked by their flows.
    """
    if network is not None and network.generation == 3:
        weight, stored, patch = network.parameters * 4, network.stored_bytes, CPNET_PATCH_BYTES
    else:
        itemsize = 2 if bfloat16 else 4
        encoder = network.encoder if network and network.encoder else weights.VIT_L
        parameters = network.parameters if network else weights.VIT_L_PARAMETERS
        weight = parameters * itemsize
        stored = network.stored_bytes if network else parameters * 4
        patch = transformer_patch_bytes(encoder.num_heads, encoder.embed_dim, itemsize)
    return Footprint(
        weight_bytes=weight,
        stored_bytes=stored,
        patch_bytes=patch,
        batch_size=batch_size,
        volume=volume,
        flow_check=flow_check,
    )
