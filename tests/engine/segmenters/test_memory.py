from __future__ import annotations

import pytest

from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters.memory import (
    CONTEXT_BYTES,
    GIB,
    cellpose_rule,
    fast_pixel_bytes,
    fused_patch_bytes,
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


@pytest.mark.parametrize(
    ("width", "batch", "seen_mib"),
    [
        (1024, 8, 220),
        (1024, 32, 868),
        (1024, 64, 1736),
        (160, 8, 42.5),
        (160, 32, 166),
        (160, 64, 332),
    ],
)
def test_fused_patches_take_what_was_seen_on_a_gpu(width: int, batch: int, seen_mib: float) -> None:
    assert batch * fused_patch_bytes(width, 2) / 2**20 == pytest.approx(seen_mib, rel=0.04)


def test_a_window_on_the_fast_path_is_never_larger_than_counted() -> None:
    # bytes a pixel that were seen, with 57 % of foreground, and counted for 80 %
    seen_alone, next_one = 107.6, 49.5
    counted = fast_pixel_bytes(3, 2)
    assert seen_alone + next_one < counted < 1.3 * (seen_alone + next_one)


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
