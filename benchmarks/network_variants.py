"""What the network would cost and err by if it were evaluated otherwise: leads, not the product.

    python benchmarks/network_variants.py OUT.json [--batch 32] [--only NAME ...]

Each variant is timed on ViT-L with random weights, and its error is taken against float32 on the
same weights and on the small trained network, whose flows mean something.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import gpu_check
import numpy as np
import oracle
import torch

from cytopave.engine.cellpose_fast.fused import FusedBlock, FusedBlocks
from cytopave.engine.cellpose_fast.network import Network
from cytopave.engine.segmenters import cellpose_weights
from cytopave.engine.segmenters.cellpose_adapter import build

if TYPE_CHECKING:
    from collections.abc import Callable

GPU = gpu_check.GPU


class Eight(torch.nn.Module):  # type: ignore[misc]
    """A linear layer in 8 bits, with a scale for each row of the input and of the weights."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight, scale = _eight(layer.weight.detach().float())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = layer.bias
        self.out_features = layer.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the layer."""
        flat, scale = _eight(x.reshape(-1, x.shape[-1]))
        out = torch._scaled_mm(
            flat,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale.t(),
            bias=self.bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return out.reshape(*x.shape[:-1], -1)


def _eight(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / most
    return (x / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale


def blocks_of(net: Any) -> Any:
    """The transformer blocks, fused or not."""
    first = net.encoder.blocks[0]
    return first.blocks if isinstance(first, FusedBlocks) else net.encoder.blocks


def gelu_apart(net: Any) -> None:
    """GELU after its product, exactly, as in float32."""
    for block in blocks_of(net):
        block._hidden = lambda tokens, mlp=block.mlp: mlp.act(mlp.lin1(tokens))


def eight_bit_mlp(net: Any) -> None:
    """The products of the perceptrons in 8 bits."""
    for block in blocks_of(net):
        block.mlp.lin1, block.mlp.lin2 = Eight(block.mlp.lin1), Eight(block.mlp.lin2)
        if isinstance(block, FusedBlock):
            block.__dict__["add_to"] = functools.partial(_add_in_eight_bits, block)


def eight_bits(net: Any) -> None:
    """All products of the blocks in 8 bits."""
    eight_bit_mlp(net)
    for block in blocks_of(net):
        block.attn.qkv, block.attn.proj = Eight(block.attn.qkv), Eight(block.attn.proj)


def _add_in_eight_bits(block: Any, total: Any, key: torch.Tensor, owed: torch.Tensor) -> None:
    """As `FusedBlock.add_to`; a product in 8 bits cannot add to a sum, and has its bias in it."""
    seen = block._attend(total.normal(block.norm1, owed[0]), key)
    if isinstance(block.attn.proj, Eight):
        total._pending = block.attn.proj(seen) - block.attn.proj.bias
    else:
        total.add(seen, block.attn.proj.weight)
    hidden = block.mlp.act(block.mlp.lin1(total.normal(block.norm2, owed[1])))
    total._pending = block.mlp.lin2(hidden) - block.mlp.lin2.bias


def not_in_place(net: Any) -> None:
    """The sum is added to where it is normalised, as where PyTorch is older than 2.10."""
    net.encoder.blocks[0].in_place = False


def nothing(net: Any) -> None:
    """The network as it is."""


VARIANTS: dict[str, tuple[Callable[[Any], None], bool, str | None]] = {
    "folded": (nothing, False, None),
    "fused": (nothing, True, None),
    "fused, not in place": (not_in_place, True, None),
    "fused, gelu apart": (gelu_apart, True, None),
    "fused, mlp in 8 bits": (eight_bit_mlp, True, None),
    "fused, all in 8 bits": (eight_bits, True, None),
    "compiled": (nothing, False, "default"),
    "compiled, mlp in 8 bits": (eight_bit_mlp, False, "default"),
    "compiled, all in 8 bits": (eight_bits, False, "default"),
}
"""What is changed, whether blocks are fused, and the mode of `torch.compile`."""


def main() -> None:
    """Time and compare the variants that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    found: dict[str, Any] = {"versions": gpu_check.versions(), "limit_ms": gpu_check._limit()}
    for name, (change, fuses, mode) in VARIANTS.items():
        if options.only and name not in options.only:
            continue
        since = time.perf_counter()
        try:
            found[name] = _variant(change, fuses, mode, options.batch)
        except Exception as error:  # noqa: BLE001 - the next one may run
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        gpu_check._empty()
        found[name]["wall_s"] = round(time.perf_counter() - since, 1)
        print(name, json.dumps(found[name]), flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1))


def _variant(
    change: Callable[[Any], None], fuses: bool, mode: str | None, batch: int
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    noise = torch.randn((2, 3, 256, 256), generator=random).to(GPU)
    with gpu_check._exact_matmul(), torch.no_grad():
        plain = oracle.vit_l(torch.float32, GPU)
        truth = plain(noise)[0]
        del plain
    run = _changed(oracle.vit_l(torch.bfloat16, GPU), change, fuses, mode, batch)
    return gpu_check._per_patch(run, batch) | {
        "error": gpu_check._error(run(noise), truth),
        "error_trained": _trained(change, fuses),
    }


def _changed(
    net: Any, change: Callable[[Any], None], fuses: bool, mode: str | None, batch: int
) -> Network:
    run = Network(net, batch=batch, fused=fuses)
    change(net)
    if mode:
        run._forward = torch.compile(net, dynamic=False, mode=mode)
    return run


def _trained(change: Callable[[Any], None], fuses: bool) -> float:
    """Error of the small network's flows on cells that it finds, eager."""
    path = cellpose_weights.find(cellpose_weights.BUNDLED)
    network = cellpose_weights.inspect(path)
    image = gpu_check._nuclei(None)[0][:512, :512].astype(np.float32) / 8000
    x = torch.from_numpy(image).to(GPU).unfold(0, 256, 256).unfold(1, 256, 256)
    x = x.reshape(4, 1, 256, 256)
    nets: list[Any] = [
        build(path, network, device=GPU.type, bfloat16=half) for half in (False, True)
    ]
    with gpu_check._exact_matmul(), torch.no_grad():
        truth = copy.deepcopy(nets[0].model.net)(x)[0]
    return gpu_check._error(_changed(nets[1].model.net, change, fuses, None, 4)(x), truth)


if __name__ == "__main__":
    main()
