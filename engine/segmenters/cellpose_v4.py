"""Cellpose 4: what differs from Cellpose 3."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.segmenters.cellpose_common import (
    Evaluation,
    check_complete,
    import_models,
    normalize,
)
from cytopave.engine.segmenters.cellpose_weights import VIT_L, Encoder, Network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHANNELS = 3
"""Channels that the network takes at most."""


@dataclass(frozen=True, slots=True)
class CellposeV4:
    """A `CellposeModel` of Cellpose 4 on its device."""

    model: Any

    @classmethod
    def build(cls, path: Path, network: Network, device: Any, *, bfloat16: bool) -> CellposeV4:
        """Build the network of the file's own size and load the file.

        Raises:
            SegmenterError: The file lacks tensors.
        """
        models = import_models()
        with _encoder_of(network.encoder):
            model = models.CellposeModel(
                pretrained_model=str(path), device=device, use_bfloat16=bfloat16
            )
        names = {n for n in model.net.state_dict() if not n.startswith("diam_")}
        check_complete(names, path)
        model.net.eval()
        return cls(model)

    def evaluate(self, tile: np.ndarray, how: Evaluation) -> np.ndarray:
        """Labels of a float32 tile ``(C, [Z], Y, X)``, which is overwritten."""
        labels, _, _ = self.model.eval(
            tile,
            channel_axis=0,
            z_axis=1 if how.volume else None,
            normalize=normalize(how.intensity),
            diameter=how.diameter,
            batch_size=how.batch_size,
            flow_threshold=how.flow_threshold,
            cellprob_threshold=how.cellprob_threshold,
            min_size=how.min_size,
            max_size_fraction=1.0,  # of the tile: anything else depends on the tile's size
            niter=how.niter,
            do_3D=how.volume,
            anisotropy=how.anisotropy,
            flow3D_smooth=list(how.flow3D_smooth) if any(how.flow3D_smooth) else 0,
        )
        return np.asarray(labels)


_building = threading.Lock()


@contextlib.contextmanager
def _encoder_of(size: Encoder | None) -> Iterator[None]:
    """Within the block, this thread's Cellpose builds its encoder in the given size.

    Cellpose takes the encoder that is registered as ``vit_l`` and reads every width off it, so a
    network of another size needs no change of Cellpose. Other threads see the original meanwhile.
    """
    if size is None or size == VIT_L:
        yield
        return
    from segment_anything import sam_model_registry as registry

    thread = threading.get_ident()
    with _building:
        original = registry["vit_l"]

        def build(checkpoint: Any = None) -> Any:
            if threading.get_ident() != thread:
                return original(checkpoint)
            return SimpleNamespace(image_encoder=_image_encoder(size))

        registry["vit_l"] = build
        try:
            yield
        finally:
            registry["vit_l"] = original


def _image_encoder(size: Encoder) -> Any:
    import functools

    import torch
    from segment_anything.modeling import ImageEncoderViT

    # image and patch size are SAM's; Cellpose then halves the patches and thins the positions
    return ImageEncoderViT(
        img_size=1024,
        patch_size=16,
        qkv_bias=True,
        use_rel_pos=True,
        norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
        **size.model_dump(),
    )
