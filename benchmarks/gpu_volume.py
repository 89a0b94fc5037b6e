"""Stacks in three dimensions on an NVIDIA GPU: is it right, the same twice, and what does it cost.

    python benchmarks/gpu_volume.py OUT.json [--only CHECK ...] [--small]

Needs what `gpu_check.py` needs, and reads nothing: stacks are made here. Each check is written to
OUT.json as soon as it is done. ``--small`` tries the script out where there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
import oracle
import torch

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast import dynamics3d
from cytopave.engine.cellpose_fast.evaluate import Recipe
from cytopave.engine.cellpose_fast.network import Network
from cytopave.engine.cellpose_fast.passes import Volume
from cytopave.engine.cellpose_fast.volume import VolumeEvaluator
from cytopave.engine.segmenters import cellpose_placed, cellpose_weights
from cytopave.engine.segmenters.cellpose_adapter import build
from cytopave.engine.segmenters.cellpose_memory import Need
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from cytopave.engine.patchwise.evaluator import PatchNetwork

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RANGE = ((0.0, 1.0),) * 3
RECIPE = Recipe(1.0, RANGE, 0.4, 0.0, 15, 200, Volume())
PATCH_MS = 0.943
"""What the arithmetic of a patch of ViT-L takes on an H200 (RESULTS.md)."""


def main() -> None:
    """Run the checks that were asked for."""
    options = _options()
    names = ("torch", "cellpose", "numpy")
    found: dict[str, Any] = {name: importlib.metadata.version(name) for name in names}
    found["card"] = torch.cuda.get_device_name(0) if GPU.type == "cuda" else "none"
    print(json.dumps(found), flush=True)
    for check in (objects, nuclei, large):
        if options.only and check.__name__ not in options.only:
            continue
        since = time.perf_counter()
        try:
            found[check.__name__] = check(small=options.small)
        except Exception as error:  # noqa: BLE001 - the next check may still tell something
            found[check.__name__] = {"error": f"{type(error).__name__}: {error}"}
        _empty()
        found[check.__name__]["wall_s"] = round(time.perf_counter() - since, 1)
        print(f"{check.__name__}: {json.dumps(found[check.__name__], default=str)}", flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1, default=str))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


def objects(*, small: bool) -> dict[str, Any]:
    """The card against the CPU: the same bits, for flows as noisy as can be."""
    shape = (12, 40, 50) if small else (40, 160, 160)
    labels = balls(shape, diameter=14)
    cells = torch.from_numpy(labels.ravel() > 0)
    foreground = cells.nonzero().squeeze(1)
    random = torch.Generator().manual_seed(0)
    noise = torch.randn((labels.size, 3), generator=random) * cells[:, None]
    there = noise.to(GPU), shape, foreground.to(GPU), 200
    ends = dynamics3d.follow(noise, shape, foreground, 200), dynamics3d.follow(*there).cpu()
    # noise meets nowhere: objects are made from where perfect flows end
    flows = _flows_to_centres(labels)
    ended = dynamics3d.follow(flows, shape, foreground, 60)
    numbers = [dynamics3d.meet(ended.to(device), shape) for device in ("cpu", GPU)]
    return {
        "voxels": len(foreground),
        "ends_identical": torch.equal(*ends),
        "objects": [count for _, count in numbers],
        "numbers_identical": torch.equal(numbers[0][0], numbers[1][0].cpu()),
    }


def nuclei(*, small: bool) -> dict[str, Any]:
    """The small network on blurred balls: parity with stock `eval`, and tiles against the whole."""
    shape = (10, 40, 50) if small else (40, 288, 320)
    image = _picture(balls(shape, diameter=22))
    found: dict[str, Any] = {"shape": shape}
    path = cellpose_weights.find("nuclei-tiny")
    network = cellpose_weights.inspect(path)
    recipe = Recipe(1.0, ((500.0, 9000.0),), 0.4, 0.0, 15, 200, Volume())
    for half in (False, True):
        ours = cellpose_placed.build(
            path, network, device=GPU.type, bfloat16=half, batch=32, volume=True
        )
        twice = [ours(image[None], _place(Box.of(shape), shape), recipe) for _ in range(2)]
        name = "bfloat16" if half else "float32"
        found[name] = {
            "objects": int(twice[0].max()),
            "same_twice": bool((twice[0] == twice[1]).all()),
        }
        if not half:
            found[name] |= _parity(ours, image, twice[0], recipe)
        found[name] |= {
            f"tile {tile}": _tiles(ours.network, image, twice[0], recipe, tile)
            for tile in ((shape[0], 96, 128), (20, 160, shape[2]))
        }
    return found


def _parity(ours: Any, image: np.ndarray, labels: np.ndarray, recipe: Recipe) -> dict[str, Any]:
    """Flows and labels against Cellpose's own `eval` of the same stack."""
    model = oracle.stock(_tiny())
    since = time.perf_counter()
    stock, (_, steps, logits), _ = model.eval(
        image.astype(np.float32),
        **{"z_axis": 0, "channel_axis": None, "do_3D": True, "batch_size": 64},
        **{"normalize": {"lowhigh": list(recipe.intensity[0])}, "max_size_fraction": 1.0},
        niter=recipe.steps,
    )
    seconds = time.perf_counter() - since
    place = _place(Box.of(image.shape), image.shape)
    flows = ours.maps(image[None], place, recipe).cpu().numpy()
    return {
        "stock_s": round(seconds, 2),
        "flows_largest_difference": float(
            np.abs(flows - np.concatenate([steps, logits[None]])).max()
        ),
        "stock, ours": _agreement(stock, labels),
    }


def _tiles(
    network: PatchNetwork,
    image: np.ndarray,
    whole: np.ndarray,
    recipe: Recipe,
    tile: tuple[int, ...],
) -> dict[str, int]:
    """Objects that lie wholly in the windows of tiles, and how many are there voxel for voxel."""
    parts = VolumeEvaluator(network, keep_bytes=2**30)
    everything = Box.of(image.shape)
    count = same = 0
    for core in everything.blocks(tile):
        window = core.grow((24, 32, 32)).intersect(everything)
        place = _place(window, image.shape)
        got = parts(image[None][:, *place.region.slices], place, recipe)
        want = whole[window.slices]
        inner = tuple(
            slice(int(a > 0), n - int(b < m))
            for a, b, n, m in zip(window.start, window.stop, want.shape, image.shape, strict=True)
        )
        edge = np.ones(want.shape, bool)
        edge[inner] = False
        # an object near the window's end may still take or lose what a cut neighbour wants
        for number in np.setdiff1d(np.unique(want), np.append(np.unique(want[edge]), 0)):
            own = want == number
            there = np.unique(got[own])
            count += 1
            same += int(len(there) == 1 and there[0] > 0 and (got == there[0]).sum() == own.sum())
    found = {"objects": count, "identical": same}
    return found | {"evaluated": parts.evaluated, "reused": parts.reused}


def large(*, small: bool) -> dict[str, Any]:
    """ViT-L behind an oracle: seconds a stage of a tile within a larger stack; stock's `eval`."""
    shape = (10, 60, 60) if small else (48, 832, 832)
    window = Box((0, 10, 10), (10, 40, 50)) if small else Box((0, 256, 256), (48, 576, 576))
    place = _place(window, shape)
    labels = balls(place.region.shape, diameter=24)
    image = _potential(labels)
    net = _vit(small)
    evaluator = VolumeEvaluator(Network(_asking(net), batch=32), keep_bytes=2**30)
    found = _stages(evaluator, image, place)
    inner = window.within(place.region)
    ours = evaluator(image, place, RECIPE)
    found["truth, ours"] = _agreement(labels[inner], ours)
    if GPU.type == "cuda":
        found["counted_gib"] = round(_counted(window) / 2**30, 2)
    del evaluator
    _empty()
    # stock, on the pixels of the window by itself
    model = oracle.stock(_asking(_vit(small)))
    since = time.perf_counter()
    stock, *_ = model.eval(
        image[:, *inner].astype(np.float32),
        **{"z_axis": 1, "channel_axis": 0, "do_3D": True, "normalize": False},
        **{"batch_size": 64, "max_size_fraction": 1.0},
    )
    found["stock_s"] = round(time.perf_counter() - since, 2)
    found["truth, stock"] = _agreement(labels[inner], stock)
    found["stock, ours"] = _agreement(stock, ours)
    return found


def _stages(evaluator: VolumeEvaluator, image: np.ndarray, place: Place) -> dict[str, Any]:
    stages: dict[str, float] = {}
    last = [0.0]

    def mark(stage: str) -> None:
        if GPU.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        stages[stage] = stages.get(stage, 0.0) + now - last[0]
        last[0] = now

    evaluator._mark = mark
    evaluator(image, place, RECIPE)
    evaluator._kept.clear()
    stages.clear()
    done = evaluator.evaluated
    if GPU.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = last[0] = time.perf_counter()
    evaluator(image, place, RECIPE)
    seconds = time.perf_counter() - begun
    patches = evaluator.evaluated - done
    peak = torch.cuda.max_memory_allocated() / 2**30 if GPU.type == "cuda" else 0
    return {
        "window": place.window.shape,
        "region": place.region.shape,
        "tile_s": round(seconds, 3),
        "stages_s": {k: round(v, 3) for k, v in stages.items()},
        "patches": patches,
        "ms_a_patch": round(1e3 * seconds / patches, 3),
        "of_limit": round(patches * PATCH_MS / 1e3 / seconds, 3),
        "peak_gib": round(peak, 2),
    }


def _counted(window: Box) -> int:
    """What the planner counts on for a window, of ViT-L; CUDA's own memory is not in a peak."""
    from cytopave.engine.segmenters.memory import CONTEXT_BYTES

    facts = {"cellpose": "4", "generation": 4, "sha256": "", "diam_mean": 30, "diam_labels": 30}
    network = cellpose_weights.Network(
        **facts,
        parameters=cellpose_weights.VIT_L_PARAMETERS,
        stored_bytes=2 * cellpose_weights.VIT_L_PARAMETERS,
        encoder=cellpose_weights.VIT_L,
    )
    need = Need(network=network, channels=3, stored=2, itemsize=2, batch=32, volume=Volume())
    return need.on_device(window.shape) - CONTEXT_BYTES


# ------------------------------------------------------------------- stacks
def balls(shape: tuple[int, ...], *, diameter: float, seed: int = 0) -> np.ndarray:
    """Balls of about that diameter on a crystal's places, ``(Z, Y, X)`` int32; none touch."""
    random = np.random.default_rng(seed)
    pitch = 1.3 * diameter
    places = [np.arange(pitch / 2, n + pitch / 2, pitch) for n in shape]
    labels = np.zeros(shape, np.int32)
    for number, centre in enumerate(np.stack(np.meshgrid(*places), -1).reshape(-1, 3), 1):
        at = centre + random.normal(0, 0.04 * diameter, 3)
        radius = diameter / 2 * random.uniform(0.75, 1.0)
        box = tuple(
            slice(max(0, math.floor(c - radius)), min(n, math.ceil(c + radius) + 1))
            for c, n in zip(at, shape, strict=True)
        )
        away = sum((i - c) ** 2 for i, c in zip(np.ogrid[box], at, strict=True))
        view = labels[box]
        view[(away <= radius**2) & (view == 0)] = number
    return labels


def _away(labels: np.ndarray) -> np.ndarray:
    """From each voxel to the mean place of its object, ``(3, voxels)``."""
    ids = labels.ravel()
    area = np.maximum(1, np.bincount(ids))
    place = np.indices(labels.shape, np.float32).reshape(3, -1)
    return np.stack([(np.bincount(ids, p) / area)[ids] - p for p in place])


def _flows_to_centres(labels: np.ndarray) -> torch.Tensor:
    away = _away(labels) * (labels.ravel() > 0)
    return torch.from_numpy((away / np.maximum(1, np.linalg.norm(away, axis=0))).T.astype("f4"))


def _potential(labels: np.ndarray) -> np.ndarray:
    """What the oracle is shown, ``(3, Z, Y, X)`` float16: a cone in each cell, where cells are."""
    cone = 1 - np.linalg.norm(_away(labels), axis=0).reshape(labels.shape) / 32
    inside = labels > 0
    found = [np.where(inside, cone, 0), np.where(inside, 1, -1), np.zeros(labels.shape)]
    return np.stack(found).astype(np.float16)


def _picture(labels: np.ndarray) -> np.ndarray:
    from scipy import ndimage

    blurred = ndimage.gaussian_filter((labels > 0) * 1.0, 1.5)
    noise = np.random.default_rng(0).normal(400, 150, labels.shape)
    return np.asarray((8000 * blurred + noise).clip(0), np.uint16)


# ------------------------------------------------------------------ networks
def _tiny() -> Any:
    """The small network as Cellpose builds it, in float32."""
    path = cellpose_weights.find("nuclei-tiny")
    built: Any = build(path, cellpose_weights.inspect(path), device=GPU.type, bfloat16=False)
    return built.model.net


def _vit(small: bool) -> Any:
    return _tiny() if small else oracle.vit_l(torch.bfloat16, GPU)


def _asking(net: Any) -> Any:
    """A network that is run, and then answers by how steep the first channel is in its plane."""

    class Oracle(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = net
            self.encoder, self.ps, self.dtype = net.encoder, net.ps, net.dtype
            self.device = net.device

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y, style = self.inner(x)
            cone = torch.nn.functional.pad(x[:, :1].float(), (1, 1, 1, 1), mode="replicate")
            up = cone[:, :, 2:, 1:-1] - cone[:, :, :-2, 1:-1]
            along = cone[:, :, 1:-1, 2:] - cone[:, :, 1:-1, :-2]
            steep = (up**2 + along**2).sqrt() + 0.02
            answer = torch.cat([5 * up / steep, 5 * along / steep, 6 * x[:, 1:2].float()], 1)
            return (answer + 0 * y.float()).to(y.dtype), style

    return Oracle().eval()


def _agreement(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    from cellpose import metrics

    a, b = (
        np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32) for x in (one, other)
    )
    ap = metrics.average_precision(a, b, threshold=[0.5, 0.75, 0.9])[0]
    return {"ap": [round(float(p), 4) for p in ap], "n": [int(a.max()), int(b.max())]}


def _place(window: Box, shape: tuple[int, ...]) -> Place:
    region = cellpose_placed.region(window, shape, rescale=1.0, volume=Volume())
    return Place("check", 0, shape, region, window)


def _empty() -> None:
    gc.collect()
    if GPU.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
