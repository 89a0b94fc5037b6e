from __future__ import annotations

import pytest
import torch
from networks import tiny

from cytopave.engine.cellpose_fast.network import Network


def patches(count: int, channels: int) -> torch.Tensor:
    return torch.rand((count, channels, 256, 256), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_folded_attention_is_the_attention(channels: int) -> None:
    x = patches(1, channels)
    plain = tiny()
    with torch.no_grad():
        expected = plain(x)[0]
    folded = Network(tiny(), batch=4)
    torch.testing.assert_close(folded(x), expected, atol=1e-4, rtol=1e-5)
    with torch.no_grad():
        # folding one network leaves the class, and so another network, as it was
        assert torch.equal(plain(x)[0], expected)


def test_in_16_bits_it_is_as_good_as_the_attention() -> None:
    x = patches(1, 1)
    with torch.no_grad():
        exact = tiny()(x)[0]
        stock = tiny(bfloat16=True)(x.bfloat16())[0]
    folded = Network(tiny(bfloat16=True), batch=4)(x)
    assert folded.dtype == torch.bfloat16
    error = [(y.float() - exact).norm() / exact.norm() for y in (stock, folded)]
    assert error[1] < 1.1 * error[0]


def test_a_patchs_answer_does_not_depend_on_what_came_with_it() -> None:
    x = patches(3, 1)
    network = Network(tiny(), batch=8)
    together = network(x)
    for one, answer in zip(x, together, strict=True):
        assert torch.equal(network(one[None])[0], answer)
    assert network(x[:0]).shape == (0, 3, 256, 256)
