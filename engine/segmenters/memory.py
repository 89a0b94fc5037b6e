"""How much GPU memory a tile needs: the planner's rules, until a measured peak replaces them.

The figures of Cellpose's stages count the tensors that its code allocates, checked against the
peaks seen on one H200 with the ViT-L network in bfloat16: 1.5, 4.2, 7.7 and 14.9 GiB at patch
batches of 8, 32, 64 and 128.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 2**30
CONTEXT_BYTES = 730_000_000
"""What CUDA, its libraries and compiled kernels hold in a process beyond tensors: 688 MiB were
measured on an H200 once everything had run."""
KEPT_BYTES = 2**29
"""Device memory for patches that neighbouring tiles may need again."""
DENSE = 0.8
"""Share of foreground to plan for: dense tissue, so that the busiest tile fits as well."""


def raw_bytes(window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
    """Bytes of a tile as it is stored: spatial window times channels (at least one)."""
    return math.prod(window_shape) * itemsize * max(1, n_channels)


def half_of_the_budget(window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
    """The default rule: a tile takes at most half of the budget, so it needs twice its bytes.

    For functions of which nothing is known. Source: the project's first requirement.
    """
    return 2 * raw_bytes(window_shape, itemsize, n_channels)


def cellpose_rule(window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
    """The rule of thumb for Cellpose: 20 times the raw bytes of the tile and 2 GiB.

    Source: the project's first requirement. The need follows pixels, network and patch batch and
    not the stored type, so this is too low for dense tiles of 4096 x 4096 pixels (or any in 8 bits)
    and for large patch batches: `Footprint` knows those.
    """
    return 20 * raw_bytes(window_shape, itemsize, n_channels) + 2 * GIB


@dataclass(frozen=True, slots=True)
class Footprint:
    """GPU memory of one Cellpose evaluation.

    Attributes:
        weight_bytes: Weights in the type that they compute in.
        stored_bytes: Weights as the file holds them: on the card too while they are loaded.
        patch_bytes: Activations of one patch of the batch.
        batch_size: Patches evaluated at a time.
        volume: Whether the dynamics run in three dimensions.
        flow_check: Whether masks are checked against flows (in two dimensions only).
    """

    weight_bytes: int
    stored_bytes: int
    patch_bytes: int
    batch_size: int
    volume: bool
    flow_check: bool

    def bytes(self, pixels: int) -> int:
        """Peak for a tile of so many pixels.

        Loading, network and dynamics follow each other and the allocator reuses what the stage
        before has freed, so the largest stage counts.
        """
        stages = (
            self.stored_bytes,
            self.batch_size * self.patch_bytes,
            int(pixels * self.bytes_per_pixel),
        )
        return CONTEXT_BYTES + self.weight_bytes + max(stages)

    @property
    def bytes_per_pixel(self) -> float:
        """The dynamics' largest stage, at a share of foreground of `DENSE`.

        Following flows keeps the field (4 bytes an axis) and some copies of the positions of the
        foreground; masks keep a padded histogram and its pooled copies; the check of the flows
        gathers nine neighbours of every foreground pixel as 32 and 64 bit numbers.
        """
        axes = 3 if self.volume else 2
        follow = axes * (4 + 14 * DENSE)
        masks = 10 * axes + 20 * DENSE
        check = 335 * DENSE if self.flow_check and not self.volume else 0
        return max(follow, masks, check)


def transformer_patch_bytes(heads: int, width: int, itemsize: int) -> int:
    """Activations of one 256 pixel patch in a SAM-style encoder: 1,024 tokens of 8 pixels.

    Attention materialises ``heads`` matrices of tokens by tokens, some of them at a time; for
    ViT-L (16 heads, width 1,024, two bytes) this comes to the 0.12 GB that was measured.
    """
    tokens = (256 // 8) ** 2
    attention = 3 * heads * tokens**2
    layers = 10 * tokens * width
    return int((attention + layers) * itemsize)


WORKSPACE_BYTES = 2**25
"""What the libraries of matrix products keep among the tensors."""


def fused_patch_bytes(width: int, itemsize: int) -> int:
    """Activations of one 256 pixel patch where attention is fused: no matrix of tokens by tokens.

    Thirteen numbers of the encoder's width a token, input in 32 bits and the answer: measured on an
    H200 for ViT-L (27.1 MiB a patch at 8, 32 and 64 of them) and `nuclei-tiny` (5.2 MiB).
    """
    tokens = (256 // 8) ** 2
    return tokens * 13 * width * itemsize + 3 * 256**2 * (4 + itemsize)


def fast_pixel_bytes(channels: int, itemsize: int) -> float:
    """The fast path's tensors per pixel of a window, at a share of foreground of `DENSE`.

    Two windows at once: of the next one, input in 32 bits with a copy, and the answers of 1.8
    pixels of patches for a pixel of the window; of the last one, its flows, and for each foreground
    pixel its place, end and object, nine links and two heats. Measured on an H200 for windows of
    1024 to 4096 pixels: 49.5 bytes of the one (3 channels, 16 bits), 22 + 152 a foreground pixel
    of the other.
    """
    following = 1.8 * 3 * itemsize + 6 * channels + 21
    return following + 22 + 152 * DENSE


def volume_patch_bytes(channels: int, itemsize: int) -> int:
    """Tensors per pixel of the patches that are evaluated at once for a stack.

    Input in 32 bits, the network's three answers, and these in 32 bits twice while they are added.
    """
    return 4 * channels + 3 * itemsize + 2 * 3 * 4


def volume_pixel_bytes(scale: float, *, smooth: bool) -> float:
    """Tensors per voxel of a window evaluated in three dimensions, at `DENSE` foreground.

    Args:
        scale: Voxels that the network sees for one of the image's.
        smooth: Whether flows are smoothed.

    Three flows and a logit are held at the network's scale and at the image's, and a third time
    where they are smoothed. Then each voxel has its steps and counts, and each foreground voxel its
    place, end and number, and while objects are measured, places along each axis and in lines.
    """
    flows = 16 * scale + 16 + (16 if smooth else 0)
    objects = 16 + 24 + 120 * DENSE
    return max(flows + 16, objects)


CPNET_PATCH_BYTES = 64_000_000
"""Activations of one 224 pixel patch in Cellpose 3's network (float32)."""
