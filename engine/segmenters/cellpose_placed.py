"""The fast path of Cellpose 4: networks evaluated by `cytopave.engine.cellpose_fast`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.engine.cellpose_fast.passes import Volume, Window
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import patches
from cytopave.engine.segmenters.cellpose_memory import KEPT_BYTES_VOLUME
from cytopave.engine.segmenters.memory import KEPT_BYTES
from cytopave.engine.segmenters.torch_device import torch_device

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.boxes import Box
    from cytopave.engine.cellpose_fast.evaluate import Evaluator, Recipe
    from cytopave.engine.segmenters.cellpose_common import Evaluation
    from cytopave.engine.segmenters.cellpose_weights import Network
    from cytopave.engine.segmenters.torch_device import Device


def obstacle(network: Network) -> str | None:
    """Why the fast path does not apply, or None where it does."""
    if network.generation != 4:
        return "it evaluates networks of Cellpose 4, and this one is of Cellpose 3"
    if network.encoder is None:
        return "it evaluates networks with a SAM encoder, and this one has another"
    return None


def resolved_path(asked: str, network: Network) -> str:
    """``fast`` or ``stock``.

    Raises:
        SegmenterError: The fast path was asked for and does not apply.
    """
    why_not = obstacle(network)
    if asked == "fast" and why_not:
        raise SegmenterError(f"path='fast' does not apply: {why_not}; take path='auto'")
    return "stock" if asked == "stock" or why_not else "fast"


def region(
    window: Box, shape: tuple[int, ...], *, rescale: float, volume: Volume | None = None
) -> Box:
    """What the patches that cover a window see of the image.

    Args:
        window: The window.
        shape: Spatial shape of the image.
        rescale: Factor by which the image is scaled for the network.
        volume: How a stack is evaluated in three dimensions; None for planes.
    """
    if volume is not None:
        return Window.of(window, shape, volume, rescale=rescale).region
    return patches.region(window, shape, rescale=rescale)


def build(
    path: Path,
    network: Network,
    *,
    device: Device,
    bfloat16: bool,
    batch: int,
    compiled: bool = False,
    volume: bool = False,
) -> Evaluator:
    """Build the network, load its weights and fold its attention.

    Raises:
        SegmenterError: No such device, or the file lacks tensors that the network has.
    """
    from cytopave.engine.cellpose_fast.evaluate import Evaluator
    from cytopave.engine.cellpose_fast.network import Network as FastNetwork
    from cytopave.engine.segmenters.cellpose_v4 import CellposeV4

    built = CellposeV4.build(path, network, torch_device(device), bfloat16=bfloat16)
    net = FastNetwork(built.model.net, batch=batch, compiled=compiled)
    if volume:
        from cytopave.engine.cellpose_fast.volume import VolumeEvaluator

        return VolumeEvaluator(net, keep_bytes=_kept_of_stacks(net.device))
    return Evaluator(net, keep_bytes=KEPT_BYTES)


def _kept_of_stacks(device: Any) -> int:
    """Device memory for patches of stacks: more where more is within what plans leave free."""
    import torch

    if device.type != "cuda":
        return KEPT_BYTES_VOLUME
    room = torch.cuda.get_device_properties(device).total_memory // 24
    return int(min(4 * KEPT_BYTES_VOLUME, max(KEPT_BYTES_VOLUME // 2, room)))


def recipe(how: Evaluation, rescale: float) -> Recipe:
    """Every number that labels depend on, for the evaluator."""
    from cytopave.engine.cellpose_fast.evaluate import Recipe

    return Recipe(
        rescale=rescale,
        intensity=how.intensity,
        flow_threshold=how.flow_threshold,
        cellprob_threshold=how.cellprob_threshold,
        min_size=how.min_size,
        steps=how.niter,
        volume=Volume(how.anisotropy, how.flow3D_smooth) if how.volume else None,
    )
