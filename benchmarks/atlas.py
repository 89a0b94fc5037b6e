"""Atlases out of core: agreement with scanpy in memory, memory and cells a second.

    python benchmarks/atlas.py FOLDER agreement [--cells 100000]   # with the extra atlas
    python benchmarks/atlas.py FOLDER scale [--cells 1000000]

*agreement*: a simulated atlas of 12 clusters and 2,000 genes goes through `preprocess_atlas` on two
workers, and through scanpy in memory with the same parameters. *scale*: the same from the store to
the components, with the resident memory of every process looked at five times a second; then scanpy
in memory in one process. The store is made once, and used again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gpu_atlas_data import profiles_of
from sampling import Sampler
from tables import machine, print_table

GENES, CLUSTERS, ROWS = 2000, 12, 20_000
DISTINCT = 10  # blocks; then the cells come again: drawing takes longer than the analysis
TOP, COMPONENTS = 500, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("agreement", "scale", "in-memory", "simulate"))
    parser.add_argument("--cells", type=int, default=None)
    parser.add_argument("--alone", action="store_true", help="without scanpy in memory")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(args.folder / "prefect"))
    os.environ |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    cells = args.cells or (100_000 if args.what == "agreement" else 1_000_000)
    store = args.folder / f"atlas-{cells}.zarr"
    if args.what == "simulate":
        simulate(store, cells)
        return
    if not store.exists():  # in a process of its own, whose memory does not count
        command = [sys.executable, __file__, str(args.folder), "simulate", "--cells", str(cells)]
        subprocess.run(command, check=True)
    if args.what == "in-memory":
        print(json.dumps(in_memory(store)))
        return
    print(machine(), flush=True)
    if args.what == "agreement":
        agreement(args.folder, store)
    else:
        scale(args.folder, store, alone=args.alone)


def simulate(store: Path, cells: int) -> None:
    """Poisson counts, about 325 of 2,000 genes found in a cell, written block by block."""
    import anndata
    import pandas as pd
    import zarr
    from scipy import sparse

    rng = np.random.default_rng(0)
    profiles = profiles_of(rng, clusters=CLUSTERS, genes=GENES)
    truth = np.resize(rng.integers(0, CLUSTERS, DISTINCT * ROWS), cells)
    part = store.with_suffix(".part")
    obs = pd.DataFrame({"truth": pd.Categorical(truth.astype(str))})
    obs.index = obs.index.astype(str)
    names = [f"MT-{i}" if i < 13 else f"G{i}" for i in range(GENES)]
    empty = sparse.csr_matrix((cells, GENES), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(empty, obs, pd.DataFrame(index=names)).write_zarr(part)
    group = zarr.open_group(str(part / "X"), mode="r+", use_consolidated=False)
    arrays = {}
    for name, dtype in (("data", np.float32), ("indices", np.int32)):
        del group[name]
        arrays[name] = group.create_array(name, shape=(0,), chunks=(1 << 20,), dtype=dtype)
        arrays[name].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    ends = [np.zeros(1, np.int64)]
    blocks: list[Any] = []
    for number, start in enumerate(range(0, cells, ROWS)):
        rows = slice(start, min(start + ROWS, cells))
        if number < DISTINCT:
            depth = rng.lognormal(0, 0.25, rows.stop - start)
            counts = rng.poisson(profiles[truth[rows]] * depth[:, None])
            blocks.append(sparse.csr_matrix(counts.astype(np.float32)))
        block = blocks[number % DISTINCT][: rows.stop - start]
        total = int(ends[-1][-1])
        for name, values in (("data", block.data), ("indices", block.indices)):
            arrays[name].resize((total + block.nnz,))
            arrays[name][total:] = values
        ends.append(total + block.indptr[1:].astype(np.int64))
    del group["indptr"]
    rows_ = group.create_array(
        "indptr", data=np.concatenate(ends).astype(np.int32), chunks=(1 << 20,)
    )
    rows_.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    zarr.consolidate_metadata(str(part))
    part.rename(store)


def run(folder: Path, store: Path, **profile: Any) -> Any:
    from cytopave.engine.atlas.parameters import Counts, Keep, Pca, Variable
    from cytopave.flows import preprocess_atlas

    counts = Counts(
        keep=Keep(min_genes=150, min_cells=10),
        variable=Variable(n_top=TOP),
        pca=Pca(n_comps=COMPONENTS),
        **profile,
    )
    out = folder / "out.zarr"
    return preprocess_atlas(
        str(store), output=str(out), profile=counts, workers=2, provider="scanpy", overwrite=True
    )


def to_components(adata: Any, *, scaled: bool) -> Any:
    """The same by scanpy, everything in memory."""
    import scanpy as sc

    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    genes = adata.var["n_cells_by_counts"] >= 10
    adata = adata[adata.obs["n_genes_by_counts"] >= 150, genes].copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=TOP)
    inner = adata[:, adata.var["highly_variable"]].copy()
    if scaled:
        sc.pp.scale(inner, max_value=10)
    solver = "covariance_eigh" if scaled else "arpack"
    sc.pp.pca(inner, n_comps=COMPONENTS, svd_solver=solver, mask_var=None)
    adata.obsm["X_pca"] = inner.obsm["X_pca"]
    return adata


def in_memory(store: Path) -> dict[str, float]:
    import anndata

    start = time.perf_counter()
    adata = anndata.read_zarr(store)
    to_components(adata, scaled=False)
    return {"all": time.perf_counter() - start}


def agreement(folder: Path, store: Path) -> None:
    import anndata
    from sklearn.metrics import adjusted_rand_score

    from cytopave.engine.atlas.parameters import Leiden, Neighbors, Scale

    report = run(
        folder,
        store,
        scale=Scale(),
        # Twelve clusters span eleven dimensions; the components beyond are noise.
        neighbors=Neighbors(n_pcs=CLUSTERS - 1),
        umap=None,
        leiden=Leiden(resolution=0.3),
    )
    found = anndata.read_zarr(report.output)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = to_components(anndata.read_zarr(store), scaled=True)
    qc = [c for c in expected.obs if c != "truth"]
    same = sum(bool((found.obs[c] == expected.obs[c]).all()) for c in qc)
    mine, theirs = found.obsm["X_pca"], expected.obsm["X_pca"]
    signs = np.sign((mine * theirs).sum(axis=0))
    chosen = [a.var["highly_variable"].to_numpy() for a in (found, expected)]
    ari = adjusted_rand_score(found.obs["truth"], found.obs["leiden"])
    rows = {
        "cells, genes kept": f"{found.n_obs}, {found.n_vars}",
        "columns of metrics identical": f"{same} of {len(qc)}",
        "values of X that differ": (found.X != expected.X).nnz,
        "variable genes in common": f"{int((chosen[0] & chosen[1]).sum())} of {chosen[1].sum()}",
        "components, largest difference": f"{np.abs(mine - theirs * signs).max():.1e}",
        "of values up to": f"{np.abs(theirs).max():.1f}",
        "clusters": report.n_clusters,
        "ARI of clusters to truth": f"{ari:.4f}",
    }
    print_table("Agreement", [{"": name, "figure": value} for name, value in rows.items()])
    show_stages(report)


def show_stages(report: Any) -> None:
    print_table("Steps", [{"step": s.name, "s": f"{s.seconds:.1f}"} for s in report.stages])


class Memory(Sampler):
    """Peak resident memory of this process and of each of its descendants."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[int, tuple[int, str]] = {}

    def look(self) -> None:
        """Keep the highest of each."""
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                rss, command = process.memory_info().rss, " ".join(process.cmdline())
            except psutil.Error:
                continue
            kind = "worker" if "spawn" in command else "API and others"
            kind = "flow" if process == me else kind
            peak = max(rss, self.peaks.get(process.pid, (0, ""))[0])
            self.peaks[process.pid] = (peak, kind)


def scale(folder: Path, store: Path, *, alone: bool) -> None:
    from cytopave.engine.atlas.store import open_atlas

    atlas = open_atlas(store)
    with Memory() as memory:
        report = run(folder, store, neighbors=None, umap=None, leiden=None, matrix="none")
    steps = [s for s in report.stages if s.name not in ("plan", "write")]
    seconds = sum(s.seconds for s in steps)
    show_stages(report)
    peaks: dict[str, list[int]] = {}
    for rss, kind in memory.peaks.values():
        peaks.setdefault(kind, []).append(rss)
    figures = {f"peak of a process, {k}": f"{max(v) / 1e9:.2f} GB" for k, v in peaks.items()}
    figures["metrics to components"] = f"{seconds:.1f} s"
    figures["cells a second"] = f"{atlas.n_cells / seconds:.0f}"
    if not alone:
        figures |= beside(folder, atlas.n_cells)
    print_table(f"{atlas.n_cells} cells", [{"": n, "figure": v} for n, v in figures.items()])


def beside(folder: Path, cells: int) -> dict[str, str]:
    """The same by scanpy in memory."""
    command = [sys.executable, __file__, str(folder), "in-memory", "--cells", str(cells)]
    with Memory() as memory:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    theirs = json.loads(done.stdout.splitlines()[-1])["all"]
    peak = max(rss for rss, _ in memory.peaks.values())
    return {
        "scanpy in memory, one process": f"{theirs:.1f} s, {peak / 1e9:.2f} GB",
        "its cells a second": f"{cells / theirs:.0f}",
    }


if __name__ == "__main__":
    main()
