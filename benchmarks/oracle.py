"""A world of cells that an untrained network finds: real cost, known truth, no weights needed.

The image has three channels, which hold what a perfect network would answer: flow along Y, flow
along X, and the logit of being in a cell. The oracle runs the real network, at its real cost, and
then answers with the image that it was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

RANGE = ((0.0, 1.0),) * 3
"""The image is as the network answers: nothing is to be scaled."""


def cells(side: int, *, diameter: float = 30, seed: int = 0) -> np.ndarray:
    """Dense ellipses of about that diameter in rows that interlock, ``(side, side)`` int32.

    Axes vary from 0.75 to 1.1 times the diameter; where two would overlap, the first keeps its
    pixels. None reaches the border.
    """
    random = np.random.default_rng(seed)
    pitch = 1.15 * diameter
    centres = [
        (y, x)
        for row, y in enumerate(np.arange(pitch, side - pitch, 0.87 * pitch))
        for x in np.arange(pitch * (1 + row % 2 / 2), side - pitch, pitch)
    ]
    labels = np.zeros((side, side), np.int32)
    reach = int(diameter)
    offset = np.arange(-reach, reach + 1)
    count = 0
    for centre in np.array(centres) + random.normal(0, 0.05 * diameter, (len(centres), 2)):
        corner = np.round(centre).astype(int)
        if corner.min() < reach or corner.max() >= side - reach:
            continue
        turn = random.uniform(0, np.pi)
        long, short = diameter / 2 * random.uniform(0.75, 1.1, 2)
        y, x = np.meshgrid(*(offset + corner[i] - centre[i] for i in (0, 1)), indexing="ij")
        along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        view = labels[tuple(slice(c - reach, c + reach + 1) for c in corner)]
        own = ((along / long) ** 2 + (across / short) ** 2 <= 1) & (view == 0)
        if own.sum() >= 30:
            count += 1
            view[own] = count
    return labels


def answers(labels: np.ndarray, device: Any) -> np.ndarray:
    """What a perfect network would say: Cellpose's flows of the truth, ``(3, Y, X)`` float16."""
    from cellpose import dynamics

    flows, _ = dynamics.masks_to_flows_gpu(labels, device=device)
    return np.concatenate([5 * flows, np.where(labels > 0, 6, -6)[None]]).astype(np.float16)


def vit_l(dtype: torch.dtype, device: Any) -> Any:
    """A Cellpose-SAM network with random weights, the same at every call."""
    import torch
    from cellpose import vit

    torch.manual_seed(0)
    net = vit.CPSAM(dtype=torch.float32)
    for block in net.encoder.blocks:
        # SAM starts from zeros, with which attention would have no bias to fold
        torch.nn.init.normal_(block.attn.rel_pos_h, std=0.1)
        torch.nn.init.normal_(block.attn.rel_pos_w, std=0.1)
    net.dtype = dtype
    return net.to(device).eval()


def asking(net: Any) -> Any:
    """The network as an oracle: a module that runs it and answers with its input."""
    import torch

    class Oracle(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = net
            self.encoder, self.ps, self.dtype = net.encoder, net.ps, net.dtype
            self.device = net.device

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, style = self.inner(x)
            return x + 0 * y, style

    return Oracle().eval()


def stock(net: Any) -> Any:
    """A `CellposeModel` around a network that was not loaded from a file."""
    from cellpose import models

    model = models.CellposeModel.__new__(models.CellposeModel)
    model.net, model.device = net, net.device
    model.gpu = net.device.type == "cuda"
    model.backbone, model.pretrained_model = "sam_vitl", "random"
    return model
