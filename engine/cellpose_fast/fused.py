"""The transformer blocks of a SAM encoder, each in nine launches: products, attention, kernels.

A block moves its tokens through memory many times between its products: to scale, widen and
join queries and keys, to add, to normalise. On a GPU that costs more than the products. Here

* one kernel reads queries and keys where the product has left them and writes them as the folded
  attention takes them (`attention`), with the relative positions multiplied in passing; the rest
  of the keys, which says where they are, is written once for all blocks;
* the sum of all blocks is kept in float32: products add to it in place where PyTorch can do that,
  else the kernel that normalises it does;
* what the blocks' biases add to it is a constant, which that kernel knows;
* in 16 bits, GELU is part of the product before it, as its tanh form, which differs from the other
  by less than 16 bits resolve.

The weights stay the blocks' own. In 16 bits a block rounds its sum twice, and here it never is.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    # Lines of one head run side by side, so that its second reading comes from the cache.
    line = tl.program_id(0)
    patch = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
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
    added,
    owed,
    weight,
    shift,
    normal,
    width,
    epsilon,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Of one token: its sum, to which something may have to be added, and what that is owed."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mine = at < width
    x = tl.load(total + token * width + at, mine, 0.0)
    if ADDS:
        x += tl.load(added + token * width + at, mine, 0.0).to(tl.float32)
        tl.store(total + token * width + at, x, mine)
    x += tl.load(owed + at, mine, 0.0)
    away = tl.where(mine, x - tl.sum(x, 0) / width, 0.0)
    spread = tl.sqrt(tl.sum(away * away, 0) / width + epsilon)
    y = away / spread * tl.load(weight + at, mine, 0.0).to(tl.float32)
    y += tl.load(shift + at, mine, 0.0).to(tl.float32)
    tl.store(normal + token * width + at, y.to(normal.dtype.element_ty), mine)


class FusedBlock(torch.nn.Module):  # type: ignore[misc]
    """What a `segment_anything` block whose attention is folded adds to a running sum."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.attn: FoldedAttention = block.attn
        self.mlp = block.mlp

    def add_to(self, total: Sum, key: torch.Tensor, owed: torch.Tensor) -> None:
        """Add everything but the biases.

        Args:
            total: The sum.
            key: Room for the keys, ``(batch, side^2, heads, wide)``; their places are in it.
            owed: What the sum lacks before each of the two norms, ``(2, width)``.
        """
        seen = self._attend(total.normal(self.norm1, owed[0]), key)
        total.add(seen, self.attn.proj.weight)
        hidden = self._hidden(total.normal(self.norm2, owed[1]))
        total.add(hidden, self.mlp.lin2.weight)

    def _attend(self, tokens: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        own = self.attn
        qkv = own.qkv(tokens)
        batch, count, heads, wide = key.shape
        side, width = own.side, qkv.shape[1] // 3 // heads
        query = torch.empty_like(key)
        shape = {"HEADS": heads, "WIDTH": width, "SIDE": side}
        # Of 1 to 8 warps, 2 were the fastest on an H200 (benchmarks/RESULTS.md).
        _widen[(side, batch * heads)](qkv, own.tables, query, key, own.scale, **shape, num_warps=2)
        value = qkv.view(batch, count, 3, heads, width)[:, :, 2]
        if not own.narrow:
            value = F.pad(value, (0, wide - width))
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        seen = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return seen[..., :width].transpose(1, 2).reshape(-1, heads * width)

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        layer = self.mlp.lin1
        if tokens.dtype == torch.float32:
            return self.mlp.act(layer(tokens))
        return torch._addmm_activation(layer.bias, tokens, layer.weight.t(), use_gelu=True)


class FusedBlocks(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of all blocks of an encoder, in inference."""

    def __init__(self, blocks: Iterable[Any], *, in_place: bool) -> None:
        """Fuse them.

        Args:
            blocks: Their attention is folded.
            in_place: Whether products add to their sum in place.
        """
        super().__init__()
        self.blocks = torch.nn.ModuleList(FusedBlock(block) for block in blocks)
        self.in_place = in_place
        biases = [b for block in self.blocks for b in (block.attn.proj.bias, block.mlp.lin2.bias)]
        owed = torch.stack([torch.zeros_like(biases[0]), *biases]).detach().float().cumsum(0)
        self.register_buffer("owed", owed, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All blocks: ``(batch, side, side, width)`` to the same shape."""
        first: FoldedAttention = self.blocks[0].attn
        batch, side = len(x), first.side
        total = Sum(x.reshape(-1, x.shape[-1]), in_place=self.in_place)
        width = x.shape[-1] // first.heads
        key = x.new_empty((batch, side * side, first.heads, width + 2 * side))
        key[..., width:] = first.places[:, None]
        for number, block in enumerate(self.blocks):
            block.add_to(total, key, self.owed[2 * number : 2 * number + 2])
        return total.value(self.owed[-1]).to(x.dtype).reshape(x.shape)


class Sum:
    """The tokens, to which all blocks add, in float32: ``(tokens, width)``."""

    def __init__(self, tokens: torch.Tensor, *, in_place: bool) -> None:
        self._total = tokens.to(torch.float32, copy=True)
        self._in_place = in_place
        self._pending: torch.Tensor | None = None

    def add(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Add ``x @ weight.T``: at once, or when the sum is looked at next."""
        if self._in_place:
            add_product(self._total, x, weight)
        else:
            self._pending = x @ weight.t()

    def normal(self, norm: Any, owed: torch.Tensor) -> torch.Tensor:
        """The sum and what it is owed, normalised, in the norm's own type."""
        total, pending = self._total, self._pending
        normal = torch.empty_like(total, dtype=norm.weight.dtype)
        _normalise[(len(total),)](
            total,
            total if pending is None else pending,
            owed,
            norm.weight,
            norm.bias,
            normal,
            total.shape[1],
            norm.eps,
            BLOCK=triton.next_power_of_2(total.shape[1]),
            ADDS=pending is not None,
        )
        self._pending = None
        return normal

    def value(self, owed: torch.Tensor) -> torch.Tensor:
        """The sum and what it is owed."""
        total = self._total if self._pending is None else self._total + self._pending
        return total + owed


def add_product(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Add ``x @ weight.T`` in place."""
    if total.dtype == x.dtype:
        total.addmm_(x, weight.t())
    else:
        torch.addmm(total, x, weight.t(), out_dtype=total.dtype, out=total)


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
    fused = FusedBlocks(blocks, in_place=_adds_in_place(layer.qkv.weight))
    net.encoder.blocks = torch.nn.ModuleList([fused])
    return True


def _adds_in_place(weight: torch.Tensor) -> bool:
    """Whether products of such weights add to a float32 sum in place: found out by a small one.

    PyTorch has a product with another type of output since 2.8, on CUDA alone; that adds rightly
    to a sum of that type since 2.10.
    """
    one = torch.ones((16, 16), dtype=weight.dtype, device=weight.device)
    total = torch.full((16, 16), 1 / 512, device=weight.device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            add_product(total, one, one)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):  # NotImplementedError is the former
        return False
    return bool((total == 16 + 1 / 512).all())
