"""A Cellpose 4 network that evaluates patches in batches of one size, through fused attention."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cytopave.engine.cellpose_fast.attention import FoldedAttention, fold, set_narrow
from cytopave.engine.patchwise.grid import SIDE
from cytopave.engine.patchwise.network import in_batches

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An attention kernel, and whether it takes values narrower than the keys."""

    backend: SDPBackend
    narrow: bool


CUDA_KERNELS = (
    Kernel(SDPBackend.CUDNN_ATTENTION, narrow=True),
    Kernel(SDPBackend.FLASH_ATTENTION, narrow=False),
    Kernel(SDPBackend.EFFICIENT_ATTENTION, narrow=True),
    Kernel(SDPBackend.MATH, narrow=True),
)
"""Fastest first, as measured on an H200; the first two compute in 16 bits only."""


class Network:
    """The network of a `CellposeModel`, changed in place: its attention is folded.

    Attributes:
        batch: Patches evaluated at a time.
        kernel: The attention kernel, or None where PyTorch chooses (on the CPU).
        fused: Whether its blocks run by the kernels of `fused`.
    """

    def __init__(self, net: Any, *, batch: int, fused: bool = True, compiled: bool = False) -> None:
        """Fold the network's attention, and choose the kernels.

        Args:
            net: A `cellpose.vit.CPSAM` with its weights, on its device.
            batch: Patches evaluated at a time, on CUDA.
            fused: Whether to fuse blocks, on CUDA with Triton.
            compiled: Whether to let PyTorch compile the network instead.
        """
        self.net = net.eval()
        self.batch = 1
        self.set_batch(batch)
        self._layers = fold(net, side=SIDE // net.ps)
        self.kernel: Kernel | None = None
        if self.device.type == "cuda":
            layer = self._layers[0]
            self.use(next(k for k in CUDA_KERNELS if _runs(k, layer, self.dtype)))
        self.fused = fused and not compiled and self._fuse()
        self._forward = torch.compile(net, dynamic=False) if compiled else net

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.net.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.net.dtype

    def set_batch(self, batch: int) -> None:
        """Evaluate so many patches at a time; always one on the CPU.

        There the tokens of one patch fill the cores, and a batch would be filled up in vain.
        """
        self.batch = batch if self.device.type == "cuda" else 1

    def _fuse(self) -> bool:
        if self.device.type != "cuda" or importlib.util.find_spec("triton") is None:
            return False
        from cytopave.engine.cellpose_fast.fused import fuse

        return fuse(self.net)

    def use(self, kernel: Kernel) -> None:
        """Attend by that kernel from now on, on CUDA; chosen at the start, for comparisons."""
        self.kernel = kernel
        set_narrow(self._layers, narrow=kernel.narrow)
        logger.debug("Attention runs by %s.", kernel.backend.name)

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """Evaluate patches ``(n, C, 256, 256)``: ``(n, 3, 256, 256)`` in the network's type.

        The last batch is filled up with black patches.
        """
        converted = patches.to(self.dtype)
        with torch.no_grad(), self._kernels():
            return in_batches(lambda part: self._forward(part)[0], converted, self.batch)

    def _kernels(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.kernel is None else sdpa_kernel(self.kernel.backend)


def _runs(kernel: Kernel, layer: FoldedAttention, dtype: torch.dtype) -> bool:
    """Whether a kernel serves this device, type and these widths: found out by one small call."""
    width = layer.qkv.out_features // 3 // layer.heads
    wide = width + 2 * layer.side
    shape = (1, layer.heads, layer.side**2)
    query = torch.zeros((*shape, wide), dtype=dtype, device=layer.qkv.weight.device)
    value = query[..., :width].contiguous() if kernel.narrow else query
    try:
        with sdpa_kernel(kernel.backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch says at length why it does not
            F.scaled_dot_product_attention(query, query, value, scale=1.0)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # what PyTorch raises where the kernel asked for is not available
        return False
    return True
