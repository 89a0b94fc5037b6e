"""A transformer block of a SAM encoder in nine launches: products, attention, and two kernels.

A block moves its tokens through memory many times between its products: to scale, widen and
join queries and keys, to add, to normalise. On a GPU that costs more than the products. Here

* one kernel reads queries and keys where the product has left them and writes them as the folded
  attention takes them (`attention`), with the relative positions multiplied in passing;
* sums with the residual are part of the products (their output starts from it);
* one kernel adds the biases, normalises, and leaves what the next product starts from.

The weights stay the block's own. Sums are rounded once where the block rounds twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.attention import FoldedAttention


@triton.jit
def _widen(
    qkv,
    tables,
    query,
    key,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Queries and keys of one row of tokens of one head, and column products of one column."""
    patch = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    line = tl.program_id(1)
    at = tl.arange(0, SIDE)
    across = tl.arange(0, WIDTH)
    wide: tl.constexpr = WIDTH + 2 * SIDE

    token = patch * SIDE * SIDE + line * SIDE + at
    source = qkv + token[:, None] * (3 * HEADS * WIDTH) + head * WIDTH + across
    target = token[:, None] * (HEADS * wide) + head * wide
    own = tl.load(source)
    tl.store(query + target + across, own * scale)
    table = tl.load(tables + (line * SIDE + at)[None, :] * WIDTH + across[:, None])
    product = tl.dot(own, table, input_precision="ieee")
    tl.store(query + target + WIDTH + at, product.to(own.dtype))
    tl.store(key + target + across, tl.load(source + HEADS * WIDTH))
    row = tl.where(at == line, 1.0, 0.0).to(own.dtype)
    tl.store(key + target + WIDTH + at, tl.broadcast_to(row[None, :], (SIDE, SIDE)))
    column = tl.where(at[:, None] == at[None, :], 1.0, 0.0).to(own.dtype)
    tl.store(key + target + WIDTH + SIDE + at, column)

    token = patch * SIDE * SIDE + at * SIDE + line
    own = tl.load(qkv + token[:, None] * (3 * HEADS * WIDTH) + head * WIDTH + across)
    tables += SIDE * SIDE * WIDTH
    table = tl.load(tables + (line * SIDE + at)[None, :] * WIDTH + across[:, None])
    product = tl.dot(own, table, input_precision="ieee")
    target = token[:, None] * (HEADS * wide) + head * wide
    tl.store(query + target + WIDTH + SIDE + at, product.to(own.dtype))


@triton.jit
def _normalise(
    total,
    bias,
    weight,
    shift,
    next_bias,
    normal,
    width,
    epsilon,
    BLOCK: tl.constexpr,
):
    """Of one token: add a bias, normalise; leave the sum with the next product's bias."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mine = at < width
    x = tl.load(total + token * width + at, mine, 0.0).to(tl.float32)
    x += tl.load(bias + at, mine, 0.0).to(tl.float32)
    away = tl.where(mine, x - tl.sum(x, 0) / width, 0.0)
    spread = tl.sqrt(tl.sum(away * away, 0) / width + epsilon)
    y = away / spread * tl.load(weight + at, mine, 0.0).to(tl.float32)
    y += tl.load(shift + at, mine, 0.0).to(tl.float32)
    tl.store(normal + token * width + at, y.to(normal.dtype.element_ty), mine)
    x += tl.load(next_bias + at, mine, 0.0).to(tl.float32)
    tl.store(total + token * width + at, x.to(total.dtype.element_ty), mine)


class FusedBlock(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of a `segment_anything` block whose attention is folded, in inference."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.attn: FoldedAttention = block.attn
        self.mlp = block.mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block: ``(batch, side, side, width)`` to the same shape."""
        tokens = x.reshape(-1, x.shape[-1])
        seen = self._attend(self.norm1(tokens), len(x))
        total = torch.addmm(tokens, seen, self.attn.proj.weight.t())
        normal = torch.empty_like(total)
        _normalise[(len(total),)](
            total,
            self.attn.proj.bias,
            self.norm2.weight,
            self.norm2.bias,
            self.mlp.lin2.bias,
            normal,
            total.shape[1],
            self.norm2.eps,
            BLOCK=triton.next_power_of_2(total.shape[1]),
        )
        hidden = self.mlp.act(self.mlp.lin1(normal))
        return torch.addmm(total, hidden, self.mlp.lin2.weight.t()).reshape(x.shape)

    def _attend(self, tokens: torch.Tensor, batch: int) -> torch.Tensor:
        own = self.attn
        heads, side = own.heads, own.side
        qkv = own.qkv(tokens)
        width = qkv.shape[1] // 3 // heads
        wide = width + 2 * side
        query, key = qkv.new_empty((2, batch, side * side, heads, wide))
        _widen[(batch * heads, side)](
            qkv, own.tables, query, key, own.scale, HEADS=heads, WIDTH=width, SIDE=side
        )
        value = qkv.view(batch, side * side, 3, heads, width)[:, :, 2]
        if not own.narrow:
            value = F.pad(value, (0, wide - width))
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        seen = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return seen[..., :width].transpose(1, 2).reshape(-1, heads * width)


def fuse(net: Any) -> bool:
    """Replace the blocks of a network whose attention is folded, where the kernels take them.

    Returns:
        Whether they do: the width of a head must be a power of two from 16 on, as must the
        number of tokens along a side.
    """
    blocks = net.encoder.blocks
    layer = blocks[0].attn
    width = layer.qkv.out_features // 3 // layer.heads
    if any(n < 16 or n & (n - 1) for n in (width, layer.side)):
        return False
    net.encoder.blocks = torch.nn.ModuleList(FusedBlock(block) for block in blocks)
    return True
