"""Where PyTorch computes: what ``auto``, ``cpu`` and ``cuda`` mean in this process."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from cytopave.engine.errors import SegmenterError

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]


def torch_device(device: Device) -> torch.device:
    """The device of that name.

    Raises:
        SegmenterError: ``cuda`` where PyTorch sees no GPU.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SegmenterError(
            "device='cuda' was asked for, and PyTorch sees no CUDA GPU in this process: run it "
            "where there is one (and check CUDA_VISIBLE_DEVICES), or take device='cpu'"
        )
    return torch.device("cuda" if computes_on_gpu(device) else "cpu")


def computes_on_gpu(device: Device) -> bool:
    """Whether that is a GPU: asked for, or there is one where this is asked."""
    if device != "auto":
        return device == "cuda"
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


class OnTorch:
    """What segmenters have in common that compute in PyTorch, on the ``device`` they are given."""

    if TYPE_CHECKING:
        device: Device

    def check_process(self) -> None:
        """Refuse a process without the GPU that was asked for.

        Raises:
            SegmenterError: PyTorch sees none.
        """
        if self.device == "cuda":
            torch_device(self.device)

    @property
    def uses_gpu(self) -> bool:
        """Whether it computes on a GPU: asked for, or there is one where this is asked."""
        return computes_on_gpu(self.device)

    @property
    def wants_gpu(self) -> bool:
        """Whether it computes on a GPU where there is one."""
        return self.device != "cpu"

    @property
    def needs_gpu(self) -> bool:
        """Whether a GPU was asked for."""
        return self.device == "cuda"

    def settled_device(self, *, gpu: bool) -> Device:
        """The device, without the choice of 'auto'."""
        if self.device != "auto":
            return self.device
        return "cuda" if gpu else "cpu"
