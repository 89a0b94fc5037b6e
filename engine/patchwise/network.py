"""Networks that evaluate patches in batches of one size: any function of torch.

One size of batch, because a matrix product may add in another order for another size: then what a
patch is answered with would depend on how many patches came with it, and so on the tile.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from cytopave.engine.errors import LabelError
from cytopave.engine.gpu.oom import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def in_batches(
    forward: Callable[[torch.Tensor], torch.Tensor], patches: torch.Tensor, batch: int
) -> torch.Tensor:
    """What a network says to patches ``(n, C, Y, X)``, in batches of exactly one size.

    The last batch is filled up with black patches.

    Args:
        forward: The network: from ``(batch, C, Y, X)`` to ``(batch, maps, Y, X)``.
        patches: Any number; of none, the answers have the right shape.
        batch: Patches at a time.
    """
    answers = None
    for start in range(0, max(1, len(patches)), batch):
        part = patches[start : start + batch]
        rest = batch - len(part)
        answer = forward(F.pad(part, (0,) * 7 + (rest,)) if rest else part)[: len(part)]
        if answers is None:
            answers = answer.new_empty((len(patches), *answer.shape[1:]))
        answers[start : start + batch] = answer
    assert answers is not None
    return answers


@contextmanager
def named(function: str, kind: type[Exception] = RuntimeError) -> Iterator[None]:
    """Within the block, say of an exception whose it is; a GPU's want of memory passes as it is.

    Args:
        function: What messages call it.
        kind: The exception that says so.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise kind(f"{function} raised {type(error).__name__}: {error}") from error


class FunctionNetwork:
    """A function of torch, such as a `torch.nn.Module`, as a `PatchNetwork`.

    Attributes:
        batch: Patches evaluated at a time; always one on a CPU, as those of one fill its cores.
        device: Where it computes.
    """

    def __init__(
        self, forward: Callable[[torch.Tensor], Any], device: torch.device, *, batch: int, name: str
    ) -> None:
        """Take the function.

        Args:
            forward: From ``(n, C, SIDE, SIDE)`` float32 to ``(n, maps, SIDE, SIDE)``.
            device: Where it computes.
            batch: Patches evaluated at a time, on CUDA.
            name: What messages call it.
        """
        self.device = device
        self.batch = 1
        self.set_batch(batch)
        self._forward = forward
        self._name = name

    def set_batch(self, batch: int) -> None:
        """Evaluate so many patches at a time; always one on the CPU."""
        self.batch = batch if self.device.type == "cuda" else 1

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """Maps ``(n, maps, SIDE, SIDE)`` of patches ``(n, C, SIDE, SIDE)``.

        Raises:
            LabelError: The function returned anything else.
        """
        with torch.no_grad():
            return in_batches(self._checked, patches, self.batch)

    def _checked(self, patches: torch.Tensor) -> torch.Tensor:
        with named(f"{self._name}, on patches of shape {tuple(patches.shape)},"):
            maps = self._forward(patches)
        if not isinstance(maps, torch.Tensor):
            raise LabelError(f"{self._name} returned a {type(maps).__name__}: return a tensor")
        wanted = (len(patches), *patches.shape[2:])
        if maps.ndim != 4 or (len(maps), *maps.shape[2:]) != wanted or not maps.is_floating_point():
            raise LabelError(
                f"{self._name} answered patches of shape {tuple(patches.shape)} with "
                f"{maps.dtype} of shape {tuple(maps.shape)}: return maps of floats, one value a "
                f"pixel of the patch, ({wanted[0]}, maps, {wanted[1]}, {wanted[2]})"
            )
        return maps
