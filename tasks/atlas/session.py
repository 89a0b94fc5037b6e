"""The matrix of an atlas as a Dask collection over all workers, at any step of a run.

A step's task runs on one worker, which it frees for the blocks' work meanwhile. The matrix never
comes to the flow's process: what a step leaves is either small, and in the scratch folder, or a
collection that the workers keep under the run's name until the run ends.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import distributed
import numpy as np
from prefect_dask.utils import get_dask_client
from scipy import sparse

from cytopave.engine.atlas import frames, kept
from cytopave.engine.atlas.parameters import Intensities
from cytopave.engine.atlas.plan import IN_MEMORY, RAW, AtlasPlan
from cytopave.engine.atlas.providers.base import Provider, get_provider
from cytopave.engine.errors import CytopaveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd

PREFIX = "cytopave-atlas-"
"""Start of the names under which workers keep collections."""


class Session:
    """One step's view of a run, inside the step's task.

    Args:
        plan: The run.
        path: Where the plan is saved.
        client: Connected to all workers.
    """

    def __init__(self, plan: AtlasPlan, path: str, client: distributed.Client) -> None:
        self.plan, self.path, self.client = plan, path, client
        self.results = plan.results
        self.provider: Provider = get_provider(plan.provider)

    @cached_property
    def cells(self) -> np.ndarray:
        """Which cells are kept, bool."""
        return np.asarray(self.results.array(self.plan.key("keep"), "cells")[:])

    @cached_property
    def genes(self) -> np.ndarray:
        """Which genes or intensities are kept, bool."""
        return np.asarray(self.results.array(self.plan.key("keep"), "genes")[:])

    @cached_property
    def gene_names(self) -> list[str]:
        """Names of the kept ones."""
        names = frames.read_names(self.plan.store, "var", unique=self.plan.unique_names)
        return [n for n, keep in zip(names, self.genes, strict=True) if keep]

    @cached_property
    def variable(self) -> np.ndarray:
        """Which of the kept genes the PCA sees, bool."""
        if not self.plan.counts:
            return np.ones(int(self.genes.sum()), bool)
        columns = self.results.read(self.plan.key("variable"), "var")
        return np.asarray(columns["highly_variable"], bool)

    @property
    def target_sum(self) -> float:
        """Counts of each cell after normalisation."""
        return float(self.results.read(self.plan.key("normalize"), "target_sum"))

    def column(self, name: str) -> Any:
        """A column of all cells: from the run's own steps, or from the store's obs."""
        profile = self.plan.profile
        if profile.leiden and name == profile.leiden.key:
            codes = np.full(len(self.cells), -1, np.int32)
            codes[self.cells] = self.results.read(self.plan.key("leiden"), "clusters")
            return codes
        if self.plan.counts:
            quality = self.quality("obs")
            if name in quality:
                return quality[name].to_numpy()
        return frames.read_column(self.plan.store, "obs", name)

    def quality(self, frame: str) -> pd.DataFrame:
        """Quality metrics of all cells (obs) or genes (var)."""
        return self.results.read(self.plan.key("quality"), frame)

    def raw(self) -> Any:
        """All of X where the provider works: lazily; or kept there, from when it is first used."""
        if self.plan.resident and (x := self._found(RAW)) is not None:
            return x
        lengths = [stop - start for start, stop in self.plan.bounds]
        width = self.plan.store.n_genes
        x = _lazy(self.path, kept.read_block, range(len(lengths)), lengths, width)
        x = self.provider.place(x)
        if self.plan.resident:
            x = self.compute(x)
            self.keep(RAW, x)
        return x

    def matrix(self) -> Any:
        """The kept cells and genes of X as they are stored, where the provider works; lazily."""
        if not self.plan.resident:
            return self.provider.place(self.stored())
        x = self.raw()
        some, lengths, width = self._shape()
        return x.blocks[some].map_blocks(
            _cut,
            dtype=x.dtype,
            chunks=(lengths, (width,)),
            meta=x._meta,
            path=self.path,
            numbers=some,
        )

    def stored(self) -> Any:
        """The kept cells and genes of X in the host's memory; lazily, read at every use."""
        return _lazy(self.path, kept.read_kept, *self._shape())

    def _shape(self) -> tuple[list[int], tuple[int, ...], int]:
        """Blocks with kept cells (Dask does not like empty ones), how many cells, and columns."""
        lengths = [int(self.cells[a:b].sum()) for a, b in self.plan.bounds]
        some = [i for i, n in enumerate(lengths) if n]
        return some, tuple(lengths[i] for i in some), int(self.genes.sum())

    def annotated(self, x: Any, *columns: str) -> Any:
        """AnnData of a lazy matrix of the kept cells, with some columns of obs."""
        import anndata
        import pandas as pd

        names = self.gene_names
        if x.shape[1] != len(names):
            names = [n for n, keep in zip(names, self.variable, strict=True) if keep]
        obs = pd.DataFrame(index=pd.RangeIndex(x.shape[0]).astype(str))
        for name in columns:
            obs[name] = np.asarray(self.column(name))[self.cells]
        return anndata.AnnData(X=x, obs=obs, var=pd.DataFrame(index=pd.Index(names)))

    def counts(self, *columns: str) -> Any:
        """AnnData of the counts of the kept cells and genes, where the provider works."""
        return self.annotated(self.matrix(), *columns)

    def normalized(self, *columns: str) -> Any:
        """AnnData of the kept cells and genes, normalised, or transformed; lazily."""
        adata = self.counts(*columns)
        profile = self.plan.profile
        if isinstance(profile, Intensities):
            x = self.stored().map_blocks(
                kept.transform,
                profile.transform,
                profile.cofactor,
                dtype=np.float32,
                meta=np.empty((0, 0), np.float32),
            )
            adata.X = self.provider.place(x)
        else:
            self.provider.normalize(adata, self.target_sum)
        return adata

    def stage(self, step: str, *columns: str) -> Any:
        """AnnData of one of the steps whose matrix stays with the workers.

        What the workers do not keep (any more) is made again from the steps before, lazily.
        """
        if (x := self._found(step)) is not None:
            return self.annotated(x, *columns)
        if step == "subset":
            adata = self.normalized(*columns)
            if self.variable.all():
                return adata
            return self.annotated(self.provider.select(adata.X, self.variable), *columns)
        counts, profile = self.plan.counts, self.plan.profile
        if step == "regress" and counts and counts.regress:
            adata = self.stage("subset", *counts.regress.keys)
            self.provider.regress(adata, counts.regress.keys)
        elif profile.scale:
            adata = self.stage(self.before("scale"))
            self.provider.scale(adata, profile.scale)
        return adata

    def before(self, step: str) -> str:
        """The step whose matrix a step begins with."""
        taken = [s for s in self.plan.steps if s in IN_MEMORY or s == step]
        return taken[taken.index(step) - 1]

    def compute(self, x: Any) -> Any:
        """The collection with its blocks computed, on the workers; raises what went wrong there."""
        x = self.client.persist(x)
        distributed.wait(x)
        # Raised here, not in whatever uses the matrix next.
        self.client.gather([f for f in distributed.futures_of(x) if f.status == "error"])
        return x

    def keep(self, step: str, x: Any) -> None:
        """Have the workers keep a collection until the run ends, or the cluster."""
        self.forget(step)
        self.client.publish_dataset(x, name=dataset_name(self.plan, step))

    def forget(self, step: str) -> None:
        """Have the workers let a collection go, if they keep it."""
        name = dataset_name(self.plan, step)
        if name in self.client.list_datasets():
            self.client.unpublish_dataset(name)

    def _found(self, step: str) -> Any:
        """What the workers keep of a step; None: nothing (any more)."""
        return self.client.get_dataset(dataset_name(self.plan, step), default=None)

    def each(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """``function(plan path, block number, *args)`` for every block, on all workers.

        What a block is reduced to has to be small.
        """
        return self.run(function, range(len(self.plan.bounds)), *args)

    def run(self, function: Callable[..., Any], items: Any, *args: Any) -> list[Any]:
        """``function(plan path, item, *args)`` for every item, on all workers."""
        futures = [
            self.client.submit(function, self.path, item, *args, pure=False) for item in items
        ]
        try:
            return list(self.client.gather(futures))
        except BaseException:
            self.client.cancel(futures)
            raise


def dataset_name(plan: AtlasPlan, step: str) -> str:
    """Name under which the workers keep a step's matrix."""
    return f"{PREFIX}{plan.key(step)}"


@contextmanager
def opened(path: str) -> Iterator[Session]:
    """A session for the task that runs just now, whose thread no longer counts as a worker's.

    Without that, a cluster of one worker would wait for itself.

    Args:
        path: The saved plan.
    """
    distributed.secede()
    with get_dask_client() as client:
        yield Session(AtlasPlan.load(path), path, client)


def _lazy(
    path: str, read: Callable[..., Any], numbers: Any, lengths: Sequence[int], width: int
) -> Any:
    """Blocks of rows as a Dask array; each is read where it is needed."""
    import dask.array as da  # a second that other flows need not wait for

    numbers = list(numbers)
    plan = AtlasPlan.load(path)
    empty = np.empty((0, 0), np.float32)
    return da.map_blocks(
        _read,
        dtype=np.float32,
        chunks=(tuple(lengths), (width,)),
        meta=sparse.csr_matrix(empty) if plan.counts else empty,
        path=path,
        read=read,
        numbers=numbers,
    )


def _read(path: str, read: Any, numbers: list[int], block_id: tuple[int, ...] = (0,)) -> Any:
    return read(AtlasPlan.load(path), numbers[block_id[0]])


def _cut(block: Any, path: str, numbers: list[int], block_id: tuple[int, ...] = (0,)) -> Any:
    plan = AtlasPlan.load(path)
    return kept.cut(plan, block, *plan.bounds[numbers[block_id[0]]])


def root_of(error: BaseException) -> BaseException:
    """Our own exception inside one of a library's; else the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CytopaveError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error
