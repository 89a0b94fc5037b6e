"""The small network that ships with cytopave, as Cellpose builds it."""

from __future__ import annotations

from typing import Any

from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.cellpose_adapter import build


def tiny(*, bfloat16: bool = False) -> Any:
    """A new `cellpose.vit.CPSAM` on the CPU."""
    path = weights.find(weights.BUNDLED)
    model: Any = build(path, weights.inspect(path), device="cpu", bfloat16=bfloat16)
    return model.model.net


def stock(net: Any) -> Any:
    """A `CellposeModel` around a network: Cellpose's own evaluation of it."""
    from cellpose import models

    model = models.CellposeModel.__new__(models.CellposeModel)
    model.net, model.device, model.gpu = net, net.device, False
    model.backbone, model.pretrained_model = "sam_vitl", "tiny"
    return model
