"""Simulated counts with known clusters, drawn and written by all cores of a machine.

As benchmarks/atlas.py draws them: 12 clusters, 2,000 genes of which about 325 are found in a cell.
Blocks are drawn in processes of their own; then each writes chunks of the store, which nobody else
writes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

GENES, CLUSTERS, ROWS = 2000, 12, 20_000
CHUNK = 1 << 20
ARRAYS = {"data": np.float32, "indices": np.int32}


def simulate(store: Path, cells: int, *, processes: int | None = None) -> None:
    """Write AnnData on Zarr, X as CSR of float32; ``obs["truth"]`` are the clusters."""
    rng = np.random.default_rng(0)
    profiles = profiles_of(rng, clusters=CLUSTERS, genes=GENES)
    truth = rng.integers(0, CLUSTERS, cells)
    raw = store.with_suffix(".raw")
    raw.mkdir(parents=True)
    starts = range(0, cells, ROWS)
    processes = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        parts = [truth[start : start + ROWS] for start in starts]
        rows = list(pool.map(partial(_draw, raw, profiles), range(len(parts)), parts))
        ends = np.concatenate([[0], np.cumsum(np.concatenate(rows))])
        _skeleton(store, truth, ends)
        firsts = ends[[*starts, cells]]
        edges = [*range(0, int(ends[-1]), CHUNK * 8), int(ends[-1])]
        jobs = [(n, a, b) for n in ARRAYS for a, b in itertools.pairwise(edges)]
        list(pool.map(partial(_write, store, raw, firsts), jobs))
    shutil.rmtree(raw)


def profiles_of(rng: np.random.Generator, *, clusters: int, genes: int) -> np.ndarray:
    """Mean counts ``(clusters, genes)``: one profile, of which each cluster raises a twentieth."""
    profiles = np.tile(rng.gamma(0.5, 0.36, genes), (clusters, 1))
    for profile in profiles:
        chosen = rng.choice(genes, genes // 20, replace=False)
        profile[chosen] = profile[chosen] * 4 + 0.3
    return profiles


def _draw(raw: Path, profiles: np.ndarray, number: int, truth: np.ndarray) -> np.ndarray:
    """Draw a block; returns the number of values in each of its rows."""
    from scipy import sparse

    rng = np.random.default_rng([1, number])
    depth = rng.lognormal(0, 0.25, len(truth))
    block = sparse.csr_matrix(rng.poisson(profiles[truth] * depth[:, None]).astype(np.float32))
    for name, dtype in ARRAYS.items():
        np.save(raw / f"{number}-{name}.npy", getattr(block, name).astype(dtype))
    lengths: np.ndarray = np.diff(block.indptr).astype(np.int64)
    return lengths


def _skeleton(store: Path, truth: np.ndarray, ends: np.ndarray) -> None:
    """Everything but the values and their columns."""
    import anndata
    import pandas as pd
    import zarr
    from scipy import sparse

    obs = pd.DataFrame({"truth": pd.Categorical(truth.astype(str))})
    obs.index = obs.index.astype(str)
    names = [f"MT-{i}" if i < 13 else f"G{i}" for i in range(GENES)]
    empty = sparse.csr_matrix((len(truth), GENES), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(empty, obs, pd.DataFrame(index=names)).write_zarr(store)
    group = zarr.open_group(str(store / "X"), mode="r+", use_consolidated=False)
    for name, dtype in (*ARRAYS.items(), ("indptr", np.int32)):
        del group[name]
        length = len(ends) if name == "indptr" else int(ends[-1])
        array: Any = group.create_array(name, shape=(length,), chunks=(CHUNK,), dtype=dtype)
        array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        if name == "indptr":
            array[:] = ends
    zarr.consolidate_metadata(str(store))


def _write(store: Path, raw: Path, firsts: np.ndarray, job: tuple[str, int, int]) -> None:
    """Write whole chunks of one array: from value ``start`` to ``stop``."""
    import zarr

    name, start, stop = job
    array: Any = zarr.open_array(str(store / "X" / name), mode="r+")
    first, last = np.searchsorted(firsts, [start, stop - 1], side="right") - 1
    parts = []
    for number in range(first, last + 1):
        block = np.load(raw / f"{number}-{name}.npy", mmap_mode="r")
        offset = int(firsts[number])
        parts.append(block[max(0, start - offset) : stop - offset])
    array[start:stop] = np.concatenate(parts)
