"""Attention with decomposed relative positions, folded so that fused kernels apply.

A SAM encoder adds to the attention of query ``q`` for key ``k`` a bias that depends on how many
rows and columns lie between their tokens: ``q . R_h[row(q) - row(k)] + q . R_w[col(q) - col(k)]``.
Written out, that is a matrix of tokens by tokens for every head of every patch, and no fused
kernel takes such a bias cheaply. But for one query there are only as many different products as
there are rows and columns of keys. Append these products to the (scaled) query, and to each key a
one-hot indicator of its row and one of its column, and their plain inner product *is* the biased
attention: the same sum, exactly, without the matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from segment_anything.modeling.image_encoder import get_rel_pos
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Iterable


class FoldedAttention(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of one `segment_anything` attention layer, with that layer's weights.

    Attributes:
        narrow: Whether values keep their own width. Queries and keys are wider, and of the fused
            kernels cuDNN's alone takes that; for the others the values are padded.
    """

    def __init__(self, layer: Any, side: int) -> None:
        super().__init__()
        self.heads: int = layer.num_heads
        self.scale: float = layer.scale
        self.qkv = layer.qkv
        self.proj = layer.proj
        self.side = side
        self.narrow = False
        weight = layer.qkv.weight
        with torch.no_grad():
            # (queries, keys, width); interpolated where the layer was trained on more tokens
            tables = [get_rel_pos(side, side, t) for t in (layer.rel_pos_h, layer.rel_pos_w)]
        one_hot = torch.eye(side, device=weight.device, dtype=weight.dtype)
        rows = one_hot.repeat_interleave(side, 0)
        columns = one_hot.repeat(side, 1)
        self.register_buffer("tables", torch.stack(tables).to(weight), persistent=False)
        self.register_buffer("places", torch.cat([rows, columns], 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend: ``(batch, side, side, width)`` to the same shape."""
        batch, side = len(x), self.side
        tokens = side * side
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        grid = q.reshape(batch, self.heads, side, side, -1)
        # of each query with each row, and with each column, of keys
        by_row = torch.einsum("bnhwc,hkc->bnhwk", grid, self.tables[0])
        by_column = torch.einsum("bnhwc,wkc->bnhwk", grid, self.tables[1])
        bias = torch.cat([by_row, by_column], -1).reshape(batch, self.heads, tokens, -1)
        query = torch.cat([q * self.scale, bias], -1)
        key = torch.cat([k, self.places.expand(batch, self.heads, -1, -1)], -1)
        width = v.shape[-1]
        if not self.narrow:
            v = F.pad(v, (0, query.shape[-1] - width))
        out = F.scaled_dot_product_attention(query, key, v, scale=1.0)[..., :width]
        return self.proj(out.transpose(1, 2).reshape(batch, side, side, -1))


def fold(net: Any, *, side: int) -> list[FoldedAttention]:
    """Replace the attention of every block of this one network; other networks keep theirs.

    Args:
        net: A `cellpose.vit.CPSAM`.
        side: Tokens along an axis of a patch.

    Returns:
        The layers that were put in.
    """
    layers = []
    for block in net.encoder.blocks:
        block.attn = FoldedAttention(block.attn, side).to(block.attn.qkv.weight.device)
        layers.append(block.attn)
    return layers


def set_narrow(layers: Iterable[FoldedAttention], *, narrow: bool) -> None:
    """Tell all layers whether the values keep their own width."""
    for layer in layers:
        layer.narrow = narrow
