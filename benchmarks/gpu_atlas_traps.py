"""What gpu_atlas.py looks at below the flow, on the workers.

Kernels that write into their input, the order of columns, sums in float32, reading, and memory.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from sampling import Sampler

if TYPE_CHECKING:
    from cytopave.engine.atlas.providers.base import Provider

ROWS, BLOCKS, CHOSEN, COMPONENTS = 50_000, 10, 500, 11


def all_of(client: Any, name: str, store: str) -> dict[str, Any]:
    """Every trap, each without the provider's care and with it."""
    found: dict[str, Any] = {}
    for trap in (_written_into, _columns):
        try:
            found |= client.submit(trap, name, store, pure=False).result()
        except Exception as error:  # noqa: BLE001 - the other trap may still tell something
            found[f"{trap.__name__}, failed"] = f"{type(error).__name__}: {error}"[:300]
    return found


def _written_into(name: str, _: str) -> dict[str, Any]:
    """A lazy step on a matrix that workers keep, computed three times; sums of all values."""
    import anndata
    import distributed

    found = {}
    steps: dict[str, dict[str, Any]] = {
        "scale": {"zero_center": False},
        "normalize_total": {"target_sum": 1e4},
    }
    with distributed.worker_client() as client:
        provider, library = _provider(name), _library(name)
        for step, arguments in steps.items():
            for care in ("as it is", "guarded"):
                x = client.persist(provider.place(_counts()))
                distributed.wait(x)
                before = _total(x)
                adata = anndata.AnnData(X=provider.guard(x) if care == "guarded" else x)
                getattr(library.pp, step)(adata, **arguments)
                thrice = [_total(adata.X) for _ in range(3)]
                source = {"kept matrix before": before, "after": _total(x)}
                found[f"{step}, {care}"] = {"three computations": thrice} | source
    return found


def _columns(name: str, store: str) -> dict[str, Any]:
    """Columns chosen by the library's own indexing and by ours; the variance found in each.

    The truth is the covariance in float64. One block of all rows shows what sums in float32 lose.
    """
    import anndata
    import distributed

    with distributed.worker_client() as client:
        provider = _provider(name)
        adata = anndata.AnnData(X=provider.place(_stored(store)))
        provider.normalize(adata, 1e4)
        genes = np.zeros(adata.n_vars, bool)
        genes[np.random.default_rng(0).choice(adata.n_vars, CHOSEN, replace=False)] = True
        theirs = client.persist(adata.X[:, np.flatnonzero(genes)])
        ours = client.persist(provider.select(adata.X, genes))
        distributed.wait([theirs, ours])
        truth = _variance(ours)
        whole = client.persist(ours.rechunk((-1, -1), method="tasks"))
        cases = {"library's indexing": theirs, "ours": ours, "ours, one block": whole}
        found: dict[str, Any] = {"rows, blocks": [ours.shape[0], ours.numblocks[0]]}
        for case, x in cases.items():
            misplaced = int(_each(x, _misplaced).sum().compute())
            variance = provider.pca(anndata.AnnData(X=x), COMPONENTS).variance
            found[case] = {
                "columns out of order": misplaced,
                "variance off by": float(np.abs(variance / truth - 1).max()),
            }
    return found


def time_reading(store: str) -> dict[str, Any]:
    """Seconds to read a block of the store in this process, and what they are spent on."""
    from cytopave.engine.atlas.store import check_values, open_atlas

    atlas = open_atlas(store)
    stop = min(ROWS, atlas.n_cells)
    atlas.read(0, min(1000, stop))  # opens what is opened once
    marks = [time.perf_counter()]
    ends = np.asarray(atlas._read("indptr", slice(0, stop + 1)))
    for array in ("data", "indices"):
        atlas._read(array, slice(int(ends[0]), int(ends[-1])))
    marks.append(time.perf_counter())
    block = atlas.read(0, stop)
    marks.append(time.perf_counter())
    check_values(block, start=0, refuse_negative="", where=store)
    marks.append(time.perf_counter())
    arrays, read, values = np.diff(marks)
    blocks = atlas.n_cells / stop
    return {
        "rows": stop,
        "s": read + values,
        "of which zarr": arrays,
        "checks": read - arrays + values,
        "one pass over the store, s": (read + values) * blocks,
    }


def time_rechunk(client: Any, name: str, store: str) -> dict[str, Any]:
    """Seconds to share out a kept matrix anew, to one block a worker; three times."""
    return dict(client.submit(_rechunked, name, store, pure=False).result())


def _rechunked(name: str, store: str) -> dict[str, Any]:
    import distributed

    seconds = []
    with distributed.worker_client() as client:
        x = client.persist(_provider(name).place(_stored(store)))
        distributed.wait(x)
        rows = -(-x.shape[0] // len(client.nthreads()))
        for _ in range(3):
            since = time.perf_counter()
            y = client.persist(x.rechunk((rows, -1), method="tasks"))
            distributed.wait(y)
            seconds.append(time.perf_counter() - since)
            del y
        nbytes = int(_each(x, _nnz).sum().compute()) * 8
    return {"s": seconds, "GB": nbytes / 1e9}


def _provider(name: str) -> Provider:
    from cytopave.engine.atlas.providers.base import get_provider

    return get_provider(name)  # type: ignore[arg-type]


def _library(name: str) -> Any:
    import importlib

    return importlib.import_module("rapids_singlecell" if name == "rapids" else "scanpy")


def _counts() -> Any:
    """A small lazy CSR matrix of counts, on the host; never one that workers keep already."""
    import dask.array as da
    from scipy import sparse

    values = np.random.default_rng(0).poisson(1.0, (1000, 50)).astype(np.float32)
    return da.from_array(values, chunks=(250, -1), name=False).map_blocks(
        sparse.csr_matrix, dtype=np.float32, meta=sparse.csr_matrix((0, 0), dtype=np.float32)
    )


def _stored(store: str) -> Any:
    """The first rows of a store as a lazy CSR matrix, on the host."""
    import dask.array as da
    from scipy import sparse

    from cytopave.engine.atlas.store import open_atlas

    atlas = open_atlas(store)
    rows = min(ROWS, -(-atlas.n_cells // 2))
    blocks = min(BLOCKS, atlas.n_cells // rows)
    return da.map_blocks(
        _read,
        dtype=np.float32,
        chunks=((rows,) * blocks, (atlas.n_genes,)),
        meta=sparse.csr_matrix((0, 0), dtype=np.float32),
        store=store,
        rows=rows,
    )


def _read(store: str, rows: int, block_id: tuple[int, ...] = (0,)) -> Any:
    from cytopave.engine.atlas.store import open_atlas

    return open_atlas(store).read(block_id[0] * rows, (block_id[0] + 1) * rows)


def _each(x: Any, function: Any, dtype: Any = np.int64) -> Any:
    """One number of each block, on the host."""
    ones = (1,) * x.numblocks[0]
    return x.map_blocks(function, dtype=dtype, chunks=(ones, (1,)), meta=np.empty((0, 0), dtype))


def _total(x: Any) -> float:
    return float(_each(x, _sum, np.float64).sum().compute())


def _sum(block: Any) -> np.ndarray:
    return np.array([[float(block.sum())]])


def _nnz(block: Any) -> np.ndarray:
    return np.array([[int(block.nnz)]])


def _misplaced(block: Any) -> np.ndarray:
    """How often a column comes after a larger one in its row."""
    ends = block.indptr[1:-1]
    falls = block.indices[1:] < block.indices[:-1]
    falls[ends[(ends > 0) & (ends < block.nnz)] - 1] = False
    return np.array([[int(falls.sum())]])


def _variance(x: Any) -> np.ndarray:
    """Variance of the first principal components, in float64 throughout."""
    n, genes = x.shape
    parts = x.map_blocks(
        _moments,
        dtype=np.float64,
        chunks=((genes + 1,) * x.numblocks[0], (genes,)),
        meta=np.empty((0, 0)),
    )
    total = parts.compute().reshape(-1, genes + 1, genes).sum(axis=0)
    mean = total[-1] / n
    covariance = (total[:-1] - n * np.outer(mean, mean)) / n
    return np.linalg.eigvalsh(covariance)[::-1][:COMPONENTS]


def _moments(block: Any) -> np.ndarray:
    dense = block.toarray().astype(np.float64)
    found = [dense.T @ dense, dense.sum(axis=0)[None]]
    return np.concatenate([m.get() if hasattr(m, "get") else m for m in found])


def read_each_pass(client: Any) -> None:
    """From now on, plans that these workers make leave X in the store."""
    client.run(_nothing_stays)


def _nothing_stays() -> None:
    from cytopave.engine.atlas import blocks

    blocks.GPU_SHARE = 0.0


def busiest(client: Any, since: float, *, most: int = 15) -> dict[str, Any]:
    """Functions in which the workers' tasks were found most often, by Dask's sampling profiler.

    A call into C counts for the function that makes it. The thread of a step, which waits while
    others compute, is seen too: waiting is told apart.

    Args:
        client: Of the workers.
        since: When what is of interest began, as `time.time` has it.
        most: How many functions.
    """
    samples: Counter[str] = Counter()
    _own_samples(client.profile(start=since), samples)
    waiting = sum(samples.pop(name) for name in [*samples] if name.endswith("/threading.py"))
    total = samples.total()
    found: dict[str, Any] = {"samples": total, "waiting": waiting}
    return found | {n: f"{k / total:.1%}" for n, k in samples.most_common(most) if k}


def _own_samples(node: Any, samples: Counter[str]) -> None:
    """Add up how often each function was found at the end of the stack."""
    below = sum(child["count"] for child in node["children"].values())
    place = node["description"]
    file = "/".join(PurePath(place["filename"]).parts[-2:])
    samples[f"{place['name']} {file}"] += node["count"] - below
    for child in node["children"].values():
        _own_samples(child, samples)


class CardMemory(Sampler):
    """Peak memory in use on any card; 0 without NVML."""

    def __init__(self) -> None:
        import pynvml

        super().__init__()
        self.peak = 0
        self._cards = []
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]

    def look(self) -> None:
        """Keep the highest."""
        import pynvml

        used = [int(pynvml.nvmlDeviceGetMemoryInfo(c).used) for c in self._cards]
        self.peak = max(self.peak, *used, 0)


def card() -> str:
    """Name of the first card, and how many there are."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return f"{count} x {pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))}"
    except pynvml.NVMLError as error:
        return f"none ({error})"


def watch_pool(client: Any) -> None:
    """From now on, workers count what is taken from RMM's pool, where they have one."""
    client.run(_count)


def _count() -> None:
    try:
        import rmm.statistics
    except ImportError:
        return
    rmm.statistics.enable_statistics()


def pool_peak(client: Any) -> dict[str, float]:
    """Most bytes of the pool that a worker had in use since the last call."""
    return {"GB of the pool": max(client.run(_peak).values()) / 1e9}


def _peak() -> int:
    try:
        import rmm.statistics
    except ImportError:
        return 0
    found = rmm.statistics.get_statistics()
    rmm.statistics.push_statistics()  # counts anew
    return int(found.peak_bytes) if found else 0
