"""The parts of gpu_atlas.py; each returns figures by name."""

from __future__ import annotations

import importlib.metadata
import sys
import time
import tomllib
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atlas
import gpu_atlas_data
import gpu_atlas_traps
import numpy as np

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

SEED_004 = 19_800  # cells a second a card, from the metrics to the components, without reading
SIGNAL = gpu_atlas_data.CLUSTERS - 1  # components that clusters span; the others are noise
SMALL = 4000
PASSES = {"rapids": 4, "scanpy": 3}
"""Over the store, where X does not stay on the card: metrics (one more for the group mt), variable
genes, subset."""
STAYED = "X stayed on the card"


@dataclass(frozen=True)
class Setup:
    """What was asked for."""

    folder: Path
    provider: str
    cluster: str
    cells: list[int]
    each_pass: bool = False

    @classmethod
    def of(cls, options: argparse.Namespace) -> Setup:
        """From the command line."""
        cells = sorted(options.cells)
        return cls(options.folder, options.provider, options.cluster, cells, options.each_pass)

    def store(self, cells: int) -> Path:
        """Where the atlas of so many cells is."""
        return self.folder / f"atlas-{cells}.zarr"

    def output(self, cells: int, provider: str) -> Path:
        """Where what a provider makes of it goes."""
        return self.folder / f"out-{cells}-{provider}.zarr"


def versions(_: Setup) -> dict[str, Any]:
    """Of everything that matters; of cytopave's own needs, what is older than it should be."""
    from packaging.requirements import Requirement

    found: dict[str, Any] = {"python": sys.version.split()[0]}
    names = "rapids-singlecell-cu13 rmm-cu13 dask-cuda dask cupy-cuda13x torch numpy scipy scanpy "
    names += "anndata zarr numba pandas prefect cuda-bindings nvidia-cuda-runtime"
    for name in names.split():
        found[name] = _version(name)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["atlas"]]
    unmet = [r for r in map(Requirement, wanted) if _version(r.name) not in r.specifier]
    found["needs that are not met"] = [f"{r} ({_version(r.name) or 'missing'})" for r in unmet]
    if "rapids_stubs" in sys.modules:
        found["stand-ins for"] = sys.modules["rapids_stubs"].stubbed()
    return {"versions": found, "card": gpu_atlas_traps.card()}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def data(setup: Setup) -> dict[str, Any]:
    """Seconds to simulate each atlas, and what it weighs."""
    found = {}
    for cells in {SMALL, *setup.cells}:
        since = time.perf_counter()
        gpu_atlas_data.simulate(setup.store(cells), cells)
        seconds = time.perf_counter() - since
        size = sum(f.stat().st_size for f in setup.store(cells).rglob("*") if f.is_file())
        found[f"{cells} cells"] = {"s": seconds, "MB": size / 1e6}
    return found


def in_memory(setup: Setup) -> dict[str, Any]:
    """Scanpy in one process, on the smallest atlas; what it finds is kept for `agreement`."""
    import anndata

    cells = setup.cells[0]
    with atlas.Memory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        since = time.perf_counter()
        adata = anndata.read_zarr(setup.store(cells))
        read = time.perf_counter() - since
        found = atlas.to_components(adata, scaled=False)
        seconds = time.perf_counter() - since
        kept = anndata.AnnData(obs=found.obs, var=found.var, obsm=dict(found.obsm))
        kept.write_zarr(setup.output(cells, "memory"))
    peak = max(rss for rss, _ in memory.peaks.values())
    return {f"{cells} cells": {"s": seconds, "of which reading": read, "GB": peak / 1e9}}


def provider(setup: Setup) -> dict[str, Any]:
    """The flow by the provider: every size, warm, and what a pass over the store costs.

    Of the last: where a worker's time goes; and once more with X left in the store, if asked for.
    """
    found: dict[str, Any] = {"provider": setup.provider, "stands beside, cells/s": SEED_004}
    with cluster(setup) as (client, address):
        _flow(setup, SMALL, address, setup.provider)  # imports, compilers, the pool
        pool = setup.cluster != "cpu"
        if pool:
            gpu_atlas_traps.watch_pool(client)
        for cells in setup.cells:
            since = time.time()
            one = attempted(partial(measured, setup, cells, address, setup.provider))
            found[f"{cells} cells"] = one | (gpu_atlas_traps.pool_peak(client) if pool else {})
        found["busiest functions"] = attempted(partial(gpu_atlas_traps.busiest, client, since))
        reading = client.submit(gpu_atlas_traps.time_reading, str(setup.store(setup.cells[-1])))
        found["reading a block, one process"] = attempted(reading.result)
        if setup.each_pass:
            gpu_atlas_traps.read_each_pass(client)
            again = partial(measured, setup, cells, address, setup.provider, keep=False)
            found[f"{cells} cells, X read by every step"] = attempted(again)
    last = found[f"{setup.cells[-1]} cells"]
    if "s" in last:
        pass_ = found["reading a block, one process"]["one pass over the store, s"]
        passes = 1 if last[STAYED] else PASSES[setup.provider]
        found["share of reading in the last"] = passes * pass_ / last["s"]
    return found


def threads(setup: Setup) -> dict[str, Any]:
    """The flow on workers that read blocks in several threads, which the Cluster block refuses."""
    cells = setup.cells[-1]
    with cluster(setup, threads_per_worker=8) as (_, address):
        _flow(setup, SMALL, address, setup.provider)
        found = measured(setup, cells, address, setup.provider, keep=False)
    return {f"{cells} cells, 8 threads a worker": found}


def attempted(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it returns; or why it did not, so that the rest of the part is not lost."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:400]}


def cpus(setup: Setup) -> dict[str, Any]:
    """The flow by scanpy, on a worker a core."""
    beside = Setup(setup.folder, "scanpy", "cpu", setup.cells)
    found = {}
    with cluster(beside) as (_, address):
        _flow(beside, SMALL, address, "scanpy")
        for cells in setup.cells:
            found[f"{cells} cells"] = attempted(partial(measured, beside, cells, address, "scanpy"))
    return found


def agreement(setup: Setup) -> dict[str, Any]:
    """What the provider found against scanpy out of core, and in memory."""
    first = setup.cells[0]
    pairs = {f"{first} cells, scanpy in memory": (first, "memory")}
    if setup.provider != "scanpy":
        pairs |= {f"{n} cells, scanpy by blocks": (n, "scanpy") for n in setup.cells}
    return {
        name: compare(setup.output(cells, setup.provider), setup.output(cells, other))
        for name, (cells, other) in pairs.items()
        if setup.output(cells, other).exists()
    }


def traps(setup: Setup) -> dict[str, Any]:
    """What goes wrong without the provider's care, and does not with it."""
    with cluster(setup) as (client, _):
        store = str(setup.store(setup.cells[-1]))
        return gpu_atlas_traps.all_of(client, setup.provider, store)


def two_cards(setup: Setup) -> dict[str, Any]:
    """UCX against TCP, where there are two cards."""
    import importlib.util

    from cytopave.engine.gpu.vram import count_gpus

    if setup.cluster != "cpu" and (cards := count_gpus()) < 2:
        return {"not run": f"{cards} card here"}
    found: dict[str, Any] = {}
    cells = setup.cells[-1]
    for protocol in ("tcp", "ucx"):
        if protocol == "ucx" and importlib.util.find_spec("distributed_ucxx") is None:
            found["ucx, not run"] = "distributed-ucxx is not installed"
            continue
        with cluster(setup, workers=2, protocol=protocol) as (client, address):
            _flow(setup, SMALL, address, setup.provider)
            found[protocol] = measured(setup, cells, address, setup.provider, keep=False)
            found[f"{protocol}, rechunk"] = gpu_atlas_traps.time_rechunk(
                client, setup.provider, str(setup.store(cells))
            )
    return found


def graph(_: Setup) -> dict[str, Any]:
    """For the record."""
    return {"neighbours, UMAP, Leiden": "not run: the RAPIDS wheels are 1.5 GB"}


@contextmanager
def cluster(setup: Setup, *, workers: int = 1, **kwargs: Any) -> Iterator[tuple[Any, str]]:
    """Workers as the Cluster block starts them, and a client of ours."""
    import distributed

    from cytopave.blocks import cluster as blocks

    gpu = setup.cluster != "cpu"
    block = blocks.Cluster(
        preset=setup.cluster,
        workers=workers if gpu else None,
        # Such a machine's memory grows as it is used: shares of what is seen now are too small.
        memory_limit="40GiB" if gpu else "6GiB",
    )
    name, options = block.recipe(gpu=gpu, library="cupy")
    options |= kwargs if gpu else {k: v for k, v in kwargs.items() if k != "protocol"}
    with (
        blocks._import(name)(**options) as started,
        distributed.Client(started.scheduler_address, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers if gpu else 1, timeout=60)
        yield client, started.scheduler_address


def measured(
    setup: Setup, cells: int, address: str, name: str, *, keep: bool = True
) -> dict[str, Any]:
    """A run of the flow: seconds of its steps, cells a second, and the memory it took."""
    with atlas.Memory() as memory, gpu_atlas_traps.CardMemory() as card:
        report = _flow(setup, cells, address, name, keep=keep)
    steps = {s.name: round(s.seconds, 2) for s in report.stages if s.name not in ("plan", "write")}
    seconds = sum(steps.values())
    peaks: dict[str, float] = {}
    for rss, kind in memory.peaks.values():
        peaks[kind] = max(peaks.get(kind, 0), round(rss / 1e9, 2))
    assert report.provider == name
    return {
        "s": seconds,
        "cells/s": round(cells / seconds),
        STAYED: report.resident,
        "steps": steps,
        "GB of a process": peaks,
        "GB of the card": card.peak / 1e9,
    }


def _flow(setup: Setup, cells: int, address: str, name: str, *, keep: bool = True) -> Any:
    from cytopave.engine.atlas.parameters import Counts, Keep, Pca, Variable
    from cytopave.flows import preprocess_atlas
    from cytopave.tasks.runner import embedded_api

    embedded_api()
    profile = Counts(
        keep=Keep(min_genes=150, min_cells=10),
        variable=Variable(n_top=atlas.TOP),
        pca=Pca(n_comps=atlas.COMPONENTS),
        neighbors=None,
        umap=None,
        leiden=None,
        matrix="none",
    )
    run: Any = preprocess_atlas
    return run(
        str(setup.store(cells)),
        output=str(setup.output(cells, name if keep else "again")),
        profile=profile,
        provider=name,
        cluster=address,
        overwrite=True,
    )


def compare(mine: Path, theirs: Path) -> dict[str, Any]:
    """Columns, chosen genes and components of two outputs; differences as they are."""
    import anndata

    a, b = anndata.read_zarr(mine), anndata.read_zarr(theirs)
    if list(a.obs_names) != list(b.obs_names) or list(a.var_names) != list(b.var_names):
        return {"cells or genes kept differ": f"{a.shape} against {b.shape}"}
    found: dict[str, Any] = {"cells, genes kept": list(a.shape)}
    for kind, x, y in (("obs", a.obs, b.obs), ("var", a.var, b.var)):
        shared = [c for c in x if c in y and y[c].dtype.kind in "iuf"]
        apart = {c: float(np.abs(x[c] - y[c]).max()) for c in shared if not x[c].equals(y[c])}
        # The same values in another type count as the same.
        apart = {c: d for c, d in apart.items() if d > 0}
        found[f"columns of {kind} identical"] = f"{len(shared) - len(apart)} of {len(shared)}"
        if apart:
            found[f"largest differences in {kind}"] = apart
    chosen = [np.asarray(s.var["highly_variable"], bool) for s in (a, b)]
    found["variable genes in common"] = f"{int((chosen[0] & chosen[1]).sum())} of {chosen[1].sum()}"
    p, q = (np.asarray(s.obsm["X_pca"], np.float64) for s in (a, b))
    q = q * np.sign((p * q).sum(axis=0))
    found["components up to"] = float(np.abs(q).max())
    found["apart, signal"] = float(np.abs(p - q)[:, :SIGNAL].max())
    found["apart, all"] = float(np.abs(p - q).max())
    return found
