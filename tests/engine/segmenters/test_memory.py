from __future__ import annotations

import pytest

from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters.memory import (
    CONTEXT_BYTES,
    GIB,
    cellpose_rule,
    half_of_the_budget,
)

LARGE = Cellpose(device="cuda")


def test_the_two_rules() -> None:
    assert half_of_the_budget((10, 10), 2, 1) == 400
    assert half_of_the_budget((10, 10), 2, 0) == 400
    assert cellpose_rule((2048, 2048), 2, 1) == 20 * 8 * 2**20 + 2 * GIB


@pytest.mark.parametrize(("batch", "seen_gib"), [(8, 1.5), (32, 4.2), (64, 7.7), (128, 14.9)])
def test_the_count_meets_the_peaks_seen_on_a_gpu(batch: int, seen_gib: float) -> None:
    footprint = LARGE.model_copy(update={"batch_size": batch}).footprint()
    counted = footprint.weight_bytes + batch * footprint.patch_bytes
    assert counted == pytest.approx(seen_gib * GIB, rel=0.07)


def test_a_tile_needs_the_larger_of_rule_and_count() -> None:
    # 16 bits and several channels: the rule says more than the tensors add up to
    assert LARGE.device_bytes((2048, 2048), 2, 3) == cellpose_rule((2048, 2048), 2, 3)
    # 8-bit pixels need as much as 16-bit ones, which the rule does not know
    counted = LARGE.footprint().bytes(4096 * 4096)
    assert LARGE.device_bytes((4096, 4096), 1, 1) == counted > cellpose_rule((4096, 4096), 1, 1)
    assert counted == CONTEXT_BYTES + 2 * 304_628_930 + int(4096 * 4096 * 335 * 0.8)


def test_the_need_follows_batch_type_and_checks() -> None:
    base = LARGE.footprint().bytes(2048**2)
    assert LARGE.model_copy(update={"batch_size": 64}).footprint().bytes(2048**2) > base
    wide = LARGE.model_copy(update={"use_bfloat16": False}).footprint()
    assert wide.patch_bytes == 2 * LARGE.footprint().patch_bytes
    unchecked = LARGE.model_copy(update={"flow_threshold": 0.0}).footprint()
    assert unchecked.bytes_per_pixel < LARGE.footprint().bytes_per_pixel / 5


def test_a_cpu_needs_no_gpu_memory() -> None:
    assert Cellpose(device="cpu").device_bytes((4096, 4096), 2, 1) == 0
