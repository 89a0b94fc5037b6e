"""The fast path against Cellpose's own `eval` on real fields, and both against the true masks.

    python benchmarks/parity.py [--diameter D] [--fields N] [--training]
    python benchmarks/parity.py --volume

Held-out fields of nuclei, each by itself and in one piece, with the small network in float32 on the
CPU; the range from the 1st to the 99th percentile of each field becomes 0 to 1, for both alike.
With --training, also the fields that the network was trained on: more objects for comparing the
two paths, and scores against the true masks that say nothing. With --volume, a real stack of
nuclei in three dimensions instead.
"""

from __future__ import annotations

import argparse

import unpacked  # noqa: F401 - before cytopave

# isort: split

import numpy as np
from invariance import stack_segmenter

from cytopave.engine import samples
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters import Cellpose, cellpose_weights


def main() -> None:
    """Print one line a field, and the pooled scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diameter", type=float)
    parser.add_argument("--fields", type=int, default=100)
    parser.add_argument("--training", action="store_true", help="the fields of the training too")
    parser.add_argument("--volume", action="store_true", help="a stack in three dimensions")
    options = parser.parse_args()
    fields = [samples.nuclei3d()] if options.volume else samples.nuclei_fields("held-out")
    fields += samples.nuclei_fields("training") if options.training else []
    fields = fields[: options.fields]
    truth: list[np.ndarray] = []
    fast: list[np.ndarray] = []
    stock: list[np.ndarray] = []
    for field in fields:
        truth.append(np.unique(field.masks, return_inverse=True)[1].reshape(field.masks.shape))
        for path, labels in (("fast", fast), ("stock", stock)):
            segmenter = (
                stack_segmenter(path)
                if options.volume
                else _segmenter(field.image, path, options.diameter)
            )
            labels.append(segmenter.load()(field.image))
        same = average_precision(stock[-1], fast[-1], threshold=0.9)
        print(f"{field.name}: {stock[-1].max()}, {fast[-1].max()}, AP@0.9 {same:.4f}", flush=True)
    print("| AP at IoU | 0.5 | 0.75 | 0.9 |\n| --- | --- | --- | --- |")
    pairs = {"fast, stock": (stock, fast), "fast, truth": (truth, fast)}
    for name, (a, b) in (pairs | {"stock, truth": (truth, stock)}).items():
        scores = [average_precision(a, b, threshold=t) for t in (0.5, 0.75, 0.9)]
        print(f"| {name} | {' | '.join(f'{s:.4f}' for s in scores)} |")
    print(f"objects: {_count(stock)} by stock, {_count(fast)} by the fast path")


def _count(labels: list[np.ndarray]) -> int:
    return sum(len(np.unique(image[image > 0])) for image in labels)


def _segmenter(image: np.ndarray, path: str, diameter: float | None) -> Cellpose:
    network = cellpose_weights.inspect(cellpose_weights.find(cellpose_weights.BUNDLED))
    low, high = np.percentile(image, (1, 99))
    return Cellpose(model=cellpose_weights.BUNDLED, use_bfloat16=False, device="cpu").model_copy(
        update={
            "diameter": diameter,
            "intensity": ((float(low), float(high)),),
            "network": network,
            "sha256": network.sha256,
            "niter": int(200 * (diameter or 30) / 30),
            "path": path,
        }
    )


if __name__ == "__main__":
    main()
