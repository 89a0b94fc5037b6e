"""Label worlds with known truth, and functions that segment them as a tile would see them.

The "image" of a world is its label image, so that a function can be perfect within its tile, or
wrong in a known way that differs from tile to tile.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import cc3d
import fastremap
import numpy as np
import scipy.ndimage as ndi
from scipy.spatial import cKDTree

Labels = np.ndarray
Function = Callable[[Labels], Labels]


# ------------------------------------------------------------------- worlds
def _seeds(
    shape: tuple[int, ...], pitch: float, rng: np.random.Generator, jitter: float
) -> np.ndarray:
    axes = [np.arange(pitch / 2, n, pitch) for n in shape]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    points = points + rng.uniform(-jitter * pitch, jitter * pitch, points.shape)
    return np.asarray(np.clip(points, 0, np.array(shape) - 1))


def confluent(shape: tuple[int, ...], pitch: int = 40, gap: int = 0, seed: int = 0) -> Labels:
    """Cells without space between them, or with a dark line of one pixel (``gap=1``)."""
    rng = np.random.default_rng(seed)
    tree = cKDTree(_seeds(shape, pitch, rng, 0.35))
    grid = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij"), -1)
    labels = (tree.query(grid.reshape(-1, len(shape)))[1] + 1).reshape(shape)
    if gap:
        edge = np.zeros(shape, bool)
        for axis in range(len(shape)):
            lower = [slice(None)] * len(shape)
            lower[axis] = slice(0, -1)
            edge[tuple(lower)] |= np.diff(labels, axis=axis) != 0
        labels[edge] = 0
    return connected(labels)


def disks(shape: tuple[int, ...], radius: float = 12, pitch: int = 30, seed: int = 0) -> Labels:
    """Round objects; they touch where the pitch is below twice the radius."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, np.int64)
    jitter = max(0.12, 0.5 * (pitch - 2 * radius - 3) / pitch)
    for number, centre in enumerate(_seeds(shape, pitch, rng, jitter), 1):
        r = radius * rng.uniform(0.75, 1)
        box = tuple(
            slice(max(0, int(c - r) - 1), min(n, int(c + r) + 2))
            for c, n in zip(centre, shape, strict=True)
        )
        away = sum((a - c) ** 2 for a, c in zip(np.ogrid[box], centre, strict=True))
        view = labels[box]
        view[(away <= r * r) & (view == 0)] = number
    return connected(labels)


def rods(shape: tuple[int, int], length: int = 900, width: int = 9, seed: int = 0) -> Labels:
    """Long wavy fibres, each over several tiles."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, np.int64)
    pitch, number = 26, 0
    for y0 in np.arange(pitch / 2, shape[0], pitch):
        x = rng.uniform(-length / 2, 0)
        period, phase = rng.uniform(200, 400), rng.uniform(0, 6.28)
        while x < shape[1]:
            extent = length * rng.uniform(0.6, 1.2)
            xs = np.arange(max(0, int(x)), min(shape[1], int(x + extent)))
            number += 1
            middle = np.round(y0 + 6 * np.sin(2 * np.pi * xs / period + phase)).astype(int)
            for d in range(-(width // 2), width // 2 + 1):
                ys = np.clip(middle + d, 0, shape[0] - 1)
                labels[ys, xs] = np.where(labels[ys, xs] == 0, number, labels[ys, xs])
            x += extent + 12
    return connected(labels)


def rings(shape: tuple[int, int], seed: int = 0) -> Labels:
    """Nested rings, open and closed, with a disk in the middle of each nest."""
    rng = np.random.default_rng(seed)
    y, x = np.ogrid[: shape[0], : shape[1]]
    labels = np.zeros(shape, np.int64)
    number = 0
    for cy, cx in _seeds(shape, 170, rng, 0.1):
        away = np.hypot(y - cy, x - cx)
        angle = np.arctan2(y - cy, x - cx)
        for inner in range(0, 80, 12):
            number += 1
            ring = (away >= inner) & (away < inner + 7)
            if inner % 24:
                ring &= np.abs(angle - rng.uniform(-3, 3)) > 0.3
            labels[ring & (labels == 0)] = number
    return connected(labels)


def crescents(shape: tuple[int, int], seed: int = 0) -> Labels:
    """Combs whose teeth leave a tile and come back: joined far away from most seams."""
    labels = np.zeros(shape, np.int64)
    number = 0
    for top in range(0, shape[0] - 40, 110):
        for left in range(0, shape[1] - 40, 90):
            number += 1
            labels[top : top + 100, left : left + 6] = number
            for tooth in range(top, top + 100, 14):
                labels[tooth : tooth + 6, left : left + 80] = number
    return connected(np.roll(labels, seed, (0, 1)))


def bridges(shape: tuple[int, int]) -> Labels:
    """Blocks joined by bridges of one pixel, and as many that a gap of one pixel parts."""
    labels = np.zeros(shape, np.int64)
    for number, (top, left) in enumerate(np.ndindex(shape[0] // 24, shape[1] // 50), 1):
        y, x = 24 * top, 50 * left
        labels[y : y + 20, x : x + 20] = number
        labels[y : y + 20, x + 24 : x + 44] = number
        labels[y + 9, x + 20 : x + 24] = number if number % 2 else 0
    return connected(labels)


def checkerboard(shape: tuple[int, ...], side: int = 3) -> Labels:
    """Squares that meet at corners only: all one object, or each its own, by connectivity."""
    place = np.indices(shape) // side
    return np.asarray(place.sum(0) % 2)


def without_crumbs(labels: Labels, least: int = 40) -> Labels:
    """The same world without parts so small that moved outlines may lose them."""
    kept = np.bincount(labels.ravel()) >= least
    return np.where(kept[labels], labels, 0).astype(np.uint32)


def connected(labels: Labels) -> Labels:
    """Each face-connected part as an object of its own: what a segmenter can know."""
    parts = cc3d.connected_components(
        labels.astype(np.uint32), connectivity=4 if labels.ndim == 2 else 6
    )
    return np.asarray(parts, np.uint32)


# ------------------------------------------------------ functions of a tile
def _generator(tile: Labels) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(np.ascontiguousarray(tile)))


def perfect(tile: Labels) -> Labels:
    """All objects of the tile, pixel for pixel, under ids that mean nothing."""
    parts = connected(tile)
    order = _generator(tile).permutation(int(parts.max())) + 1
    return np.asarray(np.concatenate([[0], order])[parts])


def shifted(tile: Labels, px: int = 1) -> Labels:
    """The whole tile's outlines moved by up to ``px`` along each axis."""
    by = _generator(tile).integers(-px, px + 1, tile.ndim)
    return np.asarray(ndi.shift(perfect(tile), by, order=0, mode="nearest"))


def grown(tile: Labels, missing: float = 0.0, px: int = 1) -> Labels:
    """Each object shrunk, kept or grown by ``px``, some of them missed."""
    rng, labels = _generator(tile), perfect(tile)
    out = np.zeros_like(labels)
    change = rng.integers(-1, 2, int(labels.max()) + 1) * px
    for number, box in enumerate(ndi.find_objects(labels), 1):
        if box is None or rng.random() < missing:
            continue
        wide = tuple(slice(max(0, s.start - 1), s.stop + 1) for s in box)
        mask = labels[wide] == number
        if change[number] < 0:
            mask = ndi.binary_erosion(mask, border_value=1)
        elif change[number] > 0:
            mask = ndi.binary_dilation(mask)
        view = out[wide]
        view[mask & ((view == 0) | (labels[wide] == number))] = number
    return out


def fusing(tile: Labels, share: float = 0.05) -> Labels:
    """Some objects drawn as one with a neighbour that they touch."""
    rng, labels = _generator(tile), perfect(tile)
    wide = ndi.grey_dilation(labels, size=(3,) * labels.ndim)
    pairs = np.unique(np.stack([labels, wide], -1)[(labels > 0) & (wide > labels)], axis=0)
    lut = np.arange(int(labels.max()) + 1)
    for small, large in pairs[rng.random(len(pairs)) < share]:
        lut[large] = lut[small]
    return np.asarray(lut[labels])


# ------------------------------------------------------------------ scoring
def same_partition(a: Labels, b: Labels) -> bool:
    """Whether two label images are equal up to a permutation of the ids."""
    pairs = np.unique(np.stack([a.ravel(), b.ravel()], 1), axis=0)
    return len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1])) == len(pairs) and (
        not (a == 0).any() or not b[a == 0].any()
    )


def fused(truth: Labels, found: Labels) -> int:
    """Objects that share a prediction, which holds at least half of each, with another."""
    t, f, n, area = _pairs(truth, found)
    held = 2 * n >= area[t]
    f, count = np.unique(f[held], return_counts=True)
    return int(count[count > 1].sum())


def split(truth: Labels, found: Labels) -> int:
    """Objects of which two predictions hold a tenth or more each."""
    t, _, n, area = _pairs(truth, found)
    part = 10 * n >= area[t]
    _, count = np.unique(t[part], return_counts=True)
    return int((count > 1).sum())


def slivers(truth: Labels, found: Labels, share: float = 0.1) -> int:
    """Predictions smaller than a tenth of the object that most of them lies in."""
    t, f, n, area = _pairs(truth, found)
    size = np.bincount(found.ravel().astype(np.int64))
    inside = (2 * n > size[f]) & (size[f] < share * area[t])
    return int(inside.sum())


def _pairs(truth: Labels, found: Labels) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    both = (truth > 0) & (found > 0)
    keys = np.stack([truth[both], found[both]], 1).astype(np.int64)
    pairs, n = np.unique(keys, axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], n, np.bincount(truth.ravel().astype(np.int64))


WORLDS: dict[str, Callable[[tuple[int, int]], Labels]] = {
    "confluent": confluent,
    "gaps": partial(confluent, gap=1),
    "clumps": partial(disks, radius=14, pitch=26),
    "nuclei": disks,
    "rods": rods,
    "rings": rings,
    "crescents": crescents,
    "bridges": bridges,
}


def dense(labels: Labels) -> Labels:
    """Ids 1..n in raster order, as tile files hold them."""
    out, _ = fastremap.renumber(labels.astype(np.int64))
    return np.asarray(out, np.uint32)
