"""The Triton kernels against torch; run as a script, it compares by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cytopave.engine.cellpose_fast import dynamics, flow_error
from cytopave.engine.cellpose_fast.objects import Objects


def compare(device: str, *, side: int, steps: int) -> None:
    """Follow noisy flows and spread heat on a device; torch on the CPU must give the same bits."""
    from cytopave.engine.cellpose_fast import kernels

    y, x = np.indices((side, side + 5))
    labels = np.where((y - 14) ** 2 + (x - 13) ** 2 <= 81, 1, 0)
    labels[(labels == 0) & ((y - 14) ** 2 + (x - 29) ** 2 <= 49)] = 2
    labels[25:29, 3:-5] = 3
    labels[26, 20:22] = 0
    flat = torch.from_numpy(labels).flatten()
    pixels = flat.nonzero().squeeze(1)
    start = torch.stack([pixels // labels.shape[1], pixels % labels.shape[1]])
    flows = torch.randn((2, *labels.shape), generator=torch.Generator().manual_seed(3))
    expected = dynamics._displace(flows, start, steps)
    assert torch.equal(kernels.displace(flows.to(device), start.to(device), steps).cpu(), expected)

    heats = []
    for where in ("cpu", device):
        objects = Objects.of(pixels.to(where), flat[pixels].to(where) - 1, 3, labels.shape)
        links = flow_error._links(objects)
        heats.append(torch.zeros(len(pixels) + 1, dtype=torch.float64, device=where))
        if len(heats) == 1:
            flow_error._diffuse(heats[0], objects, links, torch.ones(3, dtype=torch.bool))
        else:
            kernels.diffuse(heats[1], objects, links)
    assert torch.equal(heats[0], heats[1].cpu())
    assert heats[0][:-1].min() > 0


def compare_block(device: str, dtype: torch.dtype, *, width: int, side: int) -> None:
    """A fused block against the block that it replaces, with random weights."""
    from segment_anything.modeling.image_encoder import Block

    from cytopave.engine.cellpose_fast.attention import fold
    from cytopave.engine.cellpose_fast.fused import fuse

    torch.manual_seed(0)
    block = Block(width, 2, use_rel_pos=True, input_size=(side, side)).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else width**-0.5)
    net = SimpleNamespace(encoder=SimpleNamespace(blocks=torch.nn.ModuleList([block])))
    x = torch.randn((2, side, side, width))
    with torch.no_grad():
        exact = block(x)
        half = block.to(device, dtype)(x.to(device, dtype)).cpu().float()
        fold(net, side=side)
        assert fuse(net)
        fused = net.encoder.blocks[0](x.to(device, dtype)).cpu().float()
    own, allowed = ((y - exact).norm() / exact.norm() for y in (fused, half))
    assert own < 1e-5 + 1.1 * allowed


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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_block_is_the_block(dtype: torch.dtype) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    compare_block("cuda", dtype, width=128, side=32)


if __name__ == "__main__":
    compare("cpu", side=40, steps=30)
    compare_block("cpu", torch.float32, width=32, side=16)
