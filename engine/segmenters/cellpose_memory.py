"""What Cellpose takes of a GPU, read off the weights: on the stock path and on the fast one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cytopave.engine.cellpose_fast.passes import AT_ONCE, reach
from cytopave.engine.patchwise.grid import SIDE
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.memory import (
    CONTEXT_BYTES,
    CPNET_PATCH_BYTES,
    KEPT_BYTES,
    WORKSPACE_BYTES,
    Footprint,
    fast_pixel_bytes,
    fused_patch_bytes,
    transformer_patch_bytes,
    volume_patch_bytes,
    volume_pixel_bytes,
)

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.passes import Volume

KEPT_BYTES_VOLUME = 2 * KEPT_BYTES
"""Of stacks, which share more patches."""


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


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that windows need on the fast path, in bytes.

    Attributes:
        network: What is known of the weights.
        channels: Channels that the network gets.
        stored: Bytes of a stored pixel.
        itemsize: Bytes of a number that the network computes with.
        batch: Patches evaluated at a time.
        rescale: Pixels along an axis that the network sees for one of the image's.
        volume: How stacks are evaluated in three dimensions; None: planes.
    """

    network: weights.Network
    channels: int
    stored: int
    itemsize: int
    batch: int
    rescale: float = 1.0
    volume: Volume | None = None

    def on_device(self, window: tuple[int, ...]) -> int:
        """On a GPU, with all that does not depend on the window ``([Z], Y, X)``.

        CUDA itself, the weights, a batch of patches, and patches that are kept for the next tile.
        """
        assert self.network.encoder is not None
        patch = fused_patch_bytes(self.network.encoder.embed_dim, self.itemsize)
        loaded = max(self.network.stored_bytes, self.network.parameters * self.itemsize)
        fixed = CONTEXT_BYTES + WORKSPACE_BYTES + loaded + self.batch * patch
        if self.volume is None:
            return fixed + KEPT_BYTES + self.of_window(window)
        cut = SIDE**2 * volume_patch_bytes(self.channels, self.itemsize)
        return fixed + KEPT_BYTES_VOLUME + max(AT_ONCE, self.batch) * cut + self.of_window(window)

    def of_window(self, window: tuple[int, ...]) -> int:
        """What grows with the window, wherever it is computed."""
        if self.volume is not None:
            return self._of_stack(window, self.volume)
        return int(math.prod(window) * fast_pixel_bytes(self.channels, self.itemsize))

    def _of_stack(self, window: tuple[int, ...], volume: Volume) -> int:
        """Of a window ``(Z, Y, X)`` that is evaluated in three dimensions.

        The pixels that its patches see are held as they are stored: along each axis up to nearly a
        patch more on both sides, except along Z where a patch sees all planes of a thin stack.
        """
        scales = (self.rescale * volume.anisotropy, self.rescale, self.rescale)
        inner = [n + 2 * reach(sigma) for n, sigma in zip(window, volume.smooth, strict=True)]
        seen = [n + 2 * (SIDE - 1) / scale for n, scale in zip(inner, scales, strict=True)]
        if inner[0] * scales[0] < SIDE:
            seen[0] = inner[0]
        region = math.prod(seen) * self.channels * self.stored
        flows = math.prod(inner) * volume_pixel_bytes(math.prod(scales), smooth=any(volume.smooth))
        return int(region + flows)
