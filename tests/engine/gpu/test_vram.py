from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from cytopave.engine.errors import ClusterError, PlanError
from cytopave.engine.gpu.vram import GIB, Gpu, count_gpus, plan_budget, probe_gpu


class Card(SimpleNamespace):
    uuid: str
    name: str
    total: int
    free: int
    instances: list[Card | None] | None


def card(uuid: str, *, total: int = 24, free: int = 20, **more: Any) -> Card:
    fields = {"name": "Fake", "total": total * GIB, "free": free * GIB, "instances": None}
    return Card(uuid=uuid, **(fields | more))


class Nvml:
    """The functions of NVML that the probe uses, over a list of cards."""

    def __init__(self, *cards: Card) -> None:
        self.cards = cards
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        found = self.cards[index]
        if found.name == "Lost":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return found

    def nvmlDeviceGetMigMode(self, handle: Card) -> list[int]:
        if handle.instances is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(handle.instances)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Card) -> int:
        return len(handle.instances or [])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Card, index: int) -> Card:
        instance = (handle.instances or [])[index]
        if instance is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return instance

    def nvmlDeviceGetName(self, handle: Card) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Card) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Card) -> Card:
        if handle.total == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle


TWO = (card("GPU-aaaa-1", free=20), card("GPU-aabb-2", free=10))


def probe(grant: str | None, *cards: Card, assumed_gb: float | None = None) -> Gpu:
    nvml = Nvml(*cards)
    environ = {} if grant is None else {"CUDA_VISIBLE_DEVICES": grant}
    gpu = probe_gpu(environ=environ, nvml=nvml, assumed_gb=assumed_gb)
    assert nvml.open == 0, "the session with the driver was left open"
    return gpu


@pytest.mark.parametrize(
    ("grant", "index"),
    [
        (None, 0),
        ("0", 0),
        ("1", 1),
        (" 1 ", 1),
        ("1,0", 1),  # as dask-cuda rotates it for its second worker
        ("0,1", 0),
        ("0,7", 0),  # CUDA shows what precedes the first invalid entry
        ("GPU-aaaa-1", 0),
        ("GPU-aab", 1),  # the beginning suffices where one card fits
        ("GPU-aabb-2,GPU-aaaa-1", 1),
    ],
)
def test_the_first_entry_of_the_grant_is_probed(grant: str | None, index: int) -> None:
    gpu = probe(grant, *TWO)
    assert (gpu.visible, gpu.index, gpu.uuid) == (True, index, TWO[index].uuid)
    assert (gpu.total_bytes, gpu.free_bytes) == (24 * GIB, TWO[index].free)
    assert gpu.budget_bytes == TWO[index].free * 4 // 5
    assert gpu.source == "nvml"


@pytest.mark.parametrize(
    "grant",
    ["", " ", "-1", "-1,0", "2", "7,0", "NoDevFiles", "GPU-cccc", "GPU-aa", "MIG-1", "gpu0"],
)
def test_a_grant_of_nothing_is_no_gpu(grant: str) -> None:
    gpu = probe(grant, *TWO)
    assert (gpu.visible, gpu.index, gpu.source) == (False, None, "default")
    assert gpu.free_bytes == 8 * GIB
    assert gpu.budget_bytes == int(6.4 * GIB)
    assert repr(grant) in gpu.note
    assert "8 GiB are assumed" in gpu.note


def test_the_memory_of_a_mig_instance_is_its_own() -> None:
    small = card("MIG-1111", name="Fake 1g.10gb", total=10, free=9)
    large = card("MIG-2222", name="Fake 3g.40gb", total=40, free=30)
    cut = card("GPU-cut", total=80, free=60, instances=[None, small, large])
    uncut = card("GPU-uncut", instances=[])
    by_uuid = probe("MIG-2222", uncut, cut)
    assert (by_uuid.index, by_uuid.uuid, by_uuid.free_bytes) == (1, "MIG-2222", 30 * GIB)
    # Without a name CUDA takes the first instance of a card that is cut, never the whole card.
    assert probe("1", uncut, cut).uuid == "MIG-1111"
    assert probe(None, cut).uuid == "MIG-1111"
    assert probe("0", uncut, cut).uuid == "GPU-uncut"


def test_a_lost_card_does_not_hide_the_granted_one() -> None:
    assert probe("GPU-b", card("GPU-a", name="Lost"), card("GPU-b")).index == 1


def test_a_machine_without_cards() -> None:
    gpu = probe(None)
    assert not gpu.visible
    assert "the driver reports none" in gpu.note


def test_no_driver_is_no_gpu() -> None:
    class NoDriver(Nvml):
        def nvmlInit(self) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    gpu = probe_gpu(environ={}, nvml=NoDriver())
    assert (gpu.visible, gpu.source) == (False, "default")
    assert "NVML Shared Library Not Found" in gpu.note
    assumed = probe_gpu(environ={}, nvml=NoDriver(), assumed_gb=24)
    assert (assumed.visible, assumed.source) == (False, "assumed")
    assert (assumed.total_bytes, assumed.budget_bytes) == (24 * GIB, int(19.2 * GIB))


def test_a_card_that_hides_its_memory_is_still_a_gpu() -> None:
    gpu = probe("0", card("GPU-soc", total=0, free=0))
    assert (gpu.visible, gpu.uuid, gpu.source) == (True, "GPU-soc", "default")
    assert gpu.free_bytes == 8 * GIB


def test_what_is_visible_wins_over_what_is_assumed() -> None:
    assert probe("0", *TWO, assumed_gb=100).free_bytes == 20 * GIB


def test_the_smallest_worker_decides() -> None:
    gpus = [probe("0", *TWO), probe("1", *TWO)]
    assert plan_budget(gpus) == 8 * GIB
    assert plan_budget([gpus[0], probe("", *TWO)]) == int(6.4 * GIB)
    assert plan_budget([]) == int(6.4 * GIB)


def test_workers_on_one_card_share_it() -> None:
    assert plan_budget([probe("0", *TWO), probe("0", *TWO)]) == 8 * GIB
    unseen = [probe("", *TWO), probe("", *TWO)]
    assert plan_budget(unseen) == int(6.4 * GIB)


def test_an_assumption_decides_and_must_hold() -> None:
    gpus = [probe("0", *TWO), probe("1", *TWO)]
    assert plan_budget([], assumed_gb=12) == int(9.6 * GIB)
    assert plan_budget(gpus, assumed_gb=12) == int(9.6 * GIB)
    with pytest.raises(PlanError, match=r"gpu_memory_gb=24 .* 19\.2 GiB.* 10\.0 GiB free"):
        plan_budget(gpus, assumed_gb=24)


@pytest.mark.gpu
def test_the_real_driver_agrees_with_torch() -> None:
    import torch

    gpu = probe_gpu()
    assert gpu.visible
    assert str(torch.cuda.get_device_properties(0).uuid) in gpu.uuid
    free, total = torch.cuda.mem_get_info(0)
    assert gpu.total_bytes == pytest.approx(total, rel=0.05)
    assert gpu.free_bytes == pytest.approx(free, rel=0.1)


@pytest.mark.parametrize(
    ("grant", "wanted", "count"),
    [
        (None, None, 2),
        ("1", None, 1),
        ("1,0", None, 2),
        ("0,7,1", None, 1),  # CUDA stops at the first that is not there
        ("", None, 0),
        ("NoDevFiles", None, 0),
        ("", "1", 1),  # what is asked for is granted anew
        (None, "GPU-aabb, 0", 2),
    ],
)
def test_counting_gpus(grant: str | None, wanted: str | None, count: int) -> None:
    environ = {} if grant is None else {"CUDA_VISIBLE_DEVICES": grant}
    assert count_gpus(wanted, environ=environ, nvml=Nvml(*TWO)) == count


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(ClusterError, match=r"the GPU 2 \(gpus='0,2'\)"):
        count_gpus("0,2", nvml=Nvml(*TWO))
    with pytest.raises(ClusterError, match=r"the GPU 0 \(gpus='0'\)"):
        count_gpus("0", nvml=Nvml())
    assert count_gpus(environ={}, nvml=Nvml()) == 0
