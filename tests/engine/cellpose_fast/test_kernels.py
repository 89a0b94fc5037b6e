"""The Triton kernels against torch; run as a script, it compares by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast import dynamics, flow_error
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.patchwise import average, grid


def compare(device: str, *, side: int, steps: int) -> None:
    """Follow flows and check objects on a device: the same bits as by torch on the CPU."""
    from cytopave.engine.cellpose_fast import kernels

    y, x = np.indices((side, side + 5))
    labels = np.where((y - 14) ** 2 + (x - 13) ** 2 <= 81, 1, 0)
    labels[(labels == 0) & ((y - 14) ** 2 + (x - 29) ** 2 <= 49)] = 2
    labels[25:29, 3:-5] = 3
    labels[26, 20:22] = 0
    labels[30:, -1] = 4  # at the border
    flat = torch.from_numpy(labels).flatten()
    pixels = flat.nonzero().squeeze(1)
    start = torch.stack([pixels // labels.shape[1], pixels % labels.shape[1]])
    flows = torch.randn((2, *labels.shape), generator=torch.Generator().manual_seed(3))
    expected = dynamics._displace(flows, start, steps)
    assert torch.equal(kernels.displace(flows.to(device), start.to(device), steps).cpu(), expected)

    objects, there = (
        Objects.of(pixels.to(where), flat[pixels].to(where) - 1, 4, labels.shape)
        for where in ("cpu", device)
    )
    sums = kernels.error_sums(
        flows.to(device), there, scale=flow_error._SCALE, worst=flow_error._WORST
    )
    expected = flow_error._sums(flows, objects)
    assert torch.equal(sums.cpu(), expected)
    assert expected.min() > 0
    largest, kernels.LARGEST = kernels.LARGEST, 150  # one is larger
    try:
        assert torch.equal(flow_error._on_cuda(flows.to(device), there).cpu(), expected)
    finally:
        kernels.LARGEST = largest


def compare_average(device: str, window: tuple[Box, tuple[int, int], float]) -> None:
    """Add up noisy patches on a device; torch on the CPU must give the same bits."""
    from cytopave.engine.patchwise import kernels

    box, shape, rescale = window
    axes = [grid.axis(n, rescale) for n in shape]
    spans = [axis.span(a, b) for axis, a, b in zip(axes, box.start, box.stop, strict=True)]
    count = len(spans[0].patches) * len(spans[1].patches)
    random = torch.Generator().manual_seed(count)
    for dtype in (torch.float32, torch.bfloat16):
        maps = torch.randn((count, 3, 256, 256), generator=random).to(dtype)
        taper = torch.from_numpy(grid.taper())
        sums = kernels.add_patches(maps.to(device), taper.to(device), axes, spans)
        assert torch.equal(sums.cpu(), average._sum(list(maps), taper, axes, spans))


WINDOWS = [
    (Box((0, 0), (3, 5)), (3, 5), 1.0),
    (Box((205, 401), (213, 700)), (451, 900), 1.0),
    (Box((174, 10), (182, 310)), (300, 440), 30 / 22),
    (Box((242, 150), (250, 250)), (430, 430), 1.0),  # three patches overlap along each axis
]


def compare_blocks(device: str, dtype: torch.dtype, *, width: int, side: int) -> None:
    """Fused blocks against those that they replace, with random weights."""
    from segment_anything.modeling.image_encoder import Block

    from cytopave.engine.cellpose_fast.attention import fold
    from cytopave.engine.cellpose_fast.fused import fuse

    torch.manual_seed(0)
    size = {"use_rel_pos": True, "input_size": (side, side)}
    blocks = torch.nn.Sequential(*(Block(width, 2, **size) for _ in range(2))).eval()
    for parameter in blocks.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else width**-0.5)
    net = SimpleNamespace(encoder=SimpleNamespace(blocks=blocks))
    x = torch.randn((1 if device == "cpu" else 2, side, side, width))
    given = x.to(device, dtype)
    with torch.no_grad():
        exact = blocks(x)
        half = blocks.to(device, dtype)(given).cpu().float()
        fold(net, side=side)
        assert fuse(net)
        fused = net.encoder.blocks[0](given).cpu().float()
    assert torch.equal(given, x.to(device, dtype))
    own, allowed = ((y - exact).norm() / exact.norm() for y in (fused, half))
    assert own < 1e-5 + allowed


def test_the_kernels_give_the_same_bits_as_torch() -> None:
    pytest.importorskip("triton")
    # Triton decides when it is imported whether it interprets: a process of its own
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.gpu
def test_the_compiled_kernels_give_the_same_bits_as_torch() -> None:
    compare("cuda", side=400, steps=200)
    for window in WINDOWS:
        compare_average("cuda", window)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_blocks_are_the_blocks(dtype: torch.dtype) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    compare_blocks("cuda", dtype, width=128, side=32)


if __name__ == "__main__":
    compare("cpu", side=40, steps=30)
    for window in WINDOWS:
        compare_average("cpu", window)
    compare_blocks("cpu", torch.float32, width=32, side=16)
    compare_blocks("cpu", torch.float16, width=32, side=16)  # the interpreter has no bfloat16
