"""A torch network and functions of its maps, as users would name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cc3d
import numpy as np
import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN: list[tuple[int, ...]] = []
"""Shapes of all patches that networks of this process were shown."""


class Blobs(torch.nn.Module):  # type: ignore[misc]
    """Two maps: how bright it is around a pixel, and the darkest of that; both waver in a patch.

    As with a real network, what it says of a pixel depends on its surroundings and on its place in
    the patch.
    """

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Maps ``(n, 2, 256, 256)``."""
        SHOWN.append(tuple(patches.shape))
        size = 2 * self.reach + 1
        around = F.avg_pool2d(patches.mean(1, keepdim=True), size, 1, self.reach)
        place = torch.arange(256, device=patches.device) * 0.05
        around = around * (1 + 0.2 * place.sin()[:, None] * (1.3 * place).cos())
        return torch.cat([around, -F.max_pool2d(-around, 3, 1, 1)], 1)


def build(device: torch.device, *, reach: int = 3) -> Blobs:
    """The network on its device."""
    network: Blobs = Blobs(reach).to(device)
    return network


def parts(maps: torch.Tensor, *, above: float = 0.3) -> np.ndarray:
    """Connected parts in which the darkest is bright, as an array ``(Y, X)``."""
    return np.asarray(cc3d.connected_components(maps[1].cpu().numpy() > above, connectivity=4))


def parts_on_device(maps: torch.Tensor, *, above: float = 0.3) -> torch.Tensor:
    """The same as a tensor where the maps are."""
    return torch.from_numpy(parts(maps, above=above).astype(np.int32)).to(maps.device)


def answering(device: torch.device, *, how: str) -> Callable[[torch.Tensor], Any]:
    """A network that answers with what is no map of its patches."""
    answers: dict[str, Callable[[torch.Tensor], Any]] = {
        "a tuple": lambda x: (x, x),
        "half as large": lambda x: x[:, :, ::2, ::2],
        "without maps": lambda x: x[:, 0],
        "one less": lambda x: x[:-1],
        "integers": lambda x: x.to(torch.int32),
        "no numbers": lambda x: torch.full_like(x, float("nan")),
    }
    return lambda patches: answers[how](patches)


def labelling(maps: torch.Tensor, *, how: str) -> Any:
    """What is no label image of the window."""
    return {
        "floats": maps[0],
        "maps": maps.to(torch.int64),
        "a list": [1, 2, 3],
        "negative": -torch.ones(maps.shape[1:], dtype=torch.int64),
    }[how]


NOTHING = 3


def broken_build(device: torch.device) -> Blobs:
    """Finds no weights."""
    raise FileNotFoundError("no weights")


def building_nothing(device: torch.device) -> None:
    """Forgets to return the network."""
