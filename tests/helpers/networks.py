"""Networks for tests: the small one that ships with cytopave, and one that costs nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

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


class Bright(torch.nn.Module):  # type: ignore[misc]
    """A network in a millisecond: bright blobs are cells, and their flows lead up the brightness.

    What it answers depends on the place in the patch, as that of a real network does, and on three
    channels at most. It serves as Cellpose's network and as the fast path's.
    """

    batch = 1
    device = torch.device("cpu")
    dtype = torch.float32

    def set_batch(self, batch: int) -> None:
        """Evaluate so many patches at a time."""

    def forward(self, patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers ``(n, 3, 256, 256)``, and the style that Cellpose asks for."""
        brightness = patches.float().mean(1, keepdim=True)
        for _ in range(2):
            for size in ((13, 1), (1, 13)):
                brightness = F.avg_pool2d(brightness, size, 1, (size[0] // 2, size[1] // 2))
        padded = F.pad(brightness, (1, 1, 1, 1), mode="replicate")
        up = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        along = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
        steep = (up**2 + along**2).sqrt() + 0.02
        answer = torch.cat([5 * up / steep, 5 * along / steep, 20 * (brightness - 0.3)], 1)
        place = torch.arange(256) * 0.05
        answer = answer * (1 + 0.1 * place.sin()[:, None] * (1.3 * place).cos())
        return answer, torch.zeros(len(patches), 256)


class BrightPatches(Bright):
    """The same for an `Evaluator`, which takes answers alone."""

    def forward(self, patches: torch.Tensor) -> Any:
        """Answers ``(n, 3, 256, 256)``."""
        return super().forward(patches)[0]
