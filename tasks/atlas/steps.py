"""What each step of an atlas run does, given a session; a step returns a few facts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import distributed
import numpy as np

from cytopave.engine.atlas import blocks, frames, kept, qc, scores
from cytopave.engine.atlas.groups import group_sums, summaries
from cytopave.engine.atlas.plan import RAW, AtlasPlan
from cytopave.engine.atlas.results import write_entries
from cytopave.engine.atlas.selection import choose_cells, choose_genes, median_sum
from cytopave.engine.errors import AtlasError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.tasks.atlas.session import Session

type Facts = dict[str, Any]

_log = logging.getLogger(__name__)


def quality(session: Session) -> Facts:
    """Metrics of all cells and genes; GPUs that keep X have it from here on."""
    plan = session.plan
    assert plan.counts
    names = frames.read_names(plan.store, "var", unique=plan.unique_names)
    marks = qc.marked_genes(names, plan.counts.quality.marks)
    x = session.raw()
    if not _whole(x.blocks[0]):
        _log.warning(
            "X of %s holds values that are not whole numbers: are these counts?", plan.store.url
        )
    obs, var = session.provider.quality(x, marks)
    obs.index, var.index = obs.index.astype(str), var.index.astype(str)
    with session.results.making(plan.key("quality")) as folder:
        write_entries(folder, {"obs": obs, "var": var})
    return {"units": len(obs), "unit": "cells"}


def _whole(block: Any) -> bool:
    one = {"chunks": ((1,), (1,)), "meta": np.empty((0, 0), bool)}
    return bool(block.map_blocks(_is_whole, dtype=bool, **one).compute().item())


def _is_whole(block: Any) -> np.ndarray:
    return np.array([[qc.is_whole(block)]])


def keep(session: Session) -> Facts:
    """Masks of cells and genes."""
    plan = session.plan
    step = plan.profile.keep
    obs, var = (session.quality("obs"), session.quality("var")) if plan.counts else (None, None)
    wanted = [*step.columns, *step.exclude]
    columns = {n: session.column(n) for n in wanted if obs is None or n not in obs}
    cells = choose_cells(plan, obs, columns)
    if obs is not None and not (obs["total_counts"].to_numpy()[cells] > 0).any():
        raise AtlasError(f"no kept cell of {plan.store.url} has counts: is X empty?")
    names = frames.read_names(plan.store, "var", unique=plan.unique_names)
    genes = choose_genes(plan, var, names)
    with session.results.making(plan.key("keep")) as folder:
        write_entries(folder, {"cells": cells, "genes": genes})
    return {"n_cells": int(cells.sum()), "n_genes": int(genes.sum())}


def normalize(session: Session) -> Facts:
    """The sum that each cell's counts are scaled to; one pass where it is a median."""
    plan = session.plan
    assert plan.counts
    target = plan.counts.normalize.target_sum
    if target is None:
        target = median_sum(session.each(kept_sums))
    with session.results.making(plan.key("normalize")) as folder:
        write_entries(folder, {"target_sum": np.float64(target)})
    return {"target_sum": target}


def kept_sums(path: str, number: int) -> np.ndarray:
    """Counts of the kept cells of a block in the kept genes."""
    return kept.row_sums(kept.read_kept(AtlasPlan.load(path), number))


def variable(session: Session) -> Facts:
    """Which genes vary more than genes of their expression do; one pass or more."""
    plan = session.plan
    assert plan.counts
    step = plan.counts.variable
    batch = [step.batch_key] if step.batch_key else []
    of_counts = step.flavor.startswith("seurat_v3")
    adata = session.counts(*batch) if of_counts else session.normalized(*batch)
    for name in batch:
        adata.obs[name] = adata.obs[name].astype("category")
    try:
        columns = session.provider.variable(adata, step)
    except (IndexError, ValueError) as error:  # scanpy's, where too little differs
        raise AtlasError(
            f"variable genes cannot be chosen ({error}): keep more cells or genes, or set another "
            "variable.flavor"
        ) from error
    if not (n := int(columns["highly_variable"].sum())):
        raise AtlasError(
            "no gene is highly variable: are these counts of more than one kind of cell?"
        )
    with session.results.making(plan.key("variable")) as folder:
        write_entries(folder, {"var": columns})
    return {"n_variable": n}


def subset(session: Session) -> Facts:
    """The matrix that the PCA sees, computed once and kept by the workers."""
    x = session.compute(_shared(session, session.stage("subset").X))
    session.keep("subset", x)
    if not session.plan.profile.rank:  # nothing else works on all genes
        session.forget(RAW)
    return {"n_blocks": len(x.chunks[0])}


def _shared(session: Session, x: Any) -> Any:
    """On GPUs, an equal share of the rows to each worker, in as few blocks as may be."""
    if session.plan.provider != "rapids":
        return x
    x = session.client.persist(x)
    empty = np.empty((0, 0), np.int64)
    ones = (1,) * len(x.chunks[0])
    nnz = x.map_blocks(_nnz, dtype=np.int64, chunks=(ones, (1,)), meta=empty).sum().compute()
    rows = blocks.share_rows(x.shape[0], int(nnz), len(session.client.nthreads()))
    # Dask may choose its other method, which takes a way over the host's disk.
    return x.rechunk((rows, -1), method="tasks")


def _nnz(block: Any) -> np.ndarray:
    return np.array([[getattr(block, "nnz", block.size)]], np.int64)


def regress(session: Session) -> Facts:
    """The linear effect of covariates taken out; the workers keep the recipe, not the values."""
    session.keep("regress", session.stage("regress").X)
    return {}


def scale(session: Session) -> Facts:
    """Unit variance; the workers keep the recipe, not the values."""
    plan = session.plan
    assert plan.profile.scale
    before = session.stage(session.before("scale")).X
    if plan.profile.scale.zero_center:
        blocks.check_dense(
            rows=max(before.chunks[0]),
            n_cells=before.shape[0],
            genes=before.shape[1],
            itemsize=session.provider.dense_bytes,
            have=plan.worker_bytes,
        )
    session.keep("scale", session.stage("scale").X)
    return {}


def pca(session: Session) -> Facts:
    """Principal components: one pass for the covariance, one for the cells' scores."""
    plan = session.plan
    adata = session.stage(session.before("pca"))
    n_cells, n_genes = adata.shape
    most = min(n_genes, n_cells - 1)
    n_comps = plan.profile.pca.n_comps or min(50, most)
    if n_comps > most:
        raise AtlasError(
            f"{n_cells} cells and {n_genes} genes have at most {most} principal components: set "
            f"pca.n_comps to that or less (it is {n_comps})"
        )
    found = session.provider.pca(adata, n_comps)
    # The sign of a component is arbitrary: its strongest gene gets a positive one.
    strongest = np.abs(found.loadings).argmax(axis=0)
    signs = np.sign(found.loadings[strongest, np.arange(n_comps)]).astype(np.float32)
    scores_ = found.scores.map_blocks(_signed, signs, dtype=np.float32).compute()
    with session.results.making(plan.key("pca")) as folder:
        entries = {"loadings": found.loadings * signs, "variance": found.variance}
        write_entries(folder, {**entries, "ratio": found.ratio, "scores": scores_})
    return {"n_comps": n_comps}


def _signed(block: Any, signs: np.ndarray) -> np.ndarray:
    signed: np.ndarray = np.asarray(block, np.float32) * signs
    return signed


def neighbors(session: Session) -> Facts:
    """The graph of nearest neighbours, in the memory of one worker."""
    plan = session.plan
    step = plan.profile.neighbors
    assert step
    adata = _embedded(session)
    n_cells, n_comps = adata.obsm["X_pca"].shape
    if step.n_neighbors >= n_cells:
        raise AtlasError(
            f"{n_cells} cells do not have {step.n_neighbors} neighbours each: lower "
            "neighbors.n_neighbors, or keep more cells"
        )
    if step.n_pcs and step.n_pcs > n_comps:
        raise AtlasError(f"neighbors.n_pcs is {step.n_pcs}, and there are {n_comps} components")
    blocks.check_graph(
        n_cells=n_cells, n_neighbors=step.n_neighbors, n_comps=n_comps, have=plan.worker_bytes
    )
    session.provider.neighbors(adata, step, seed=plan.profile.seed)
    with session.results.making(plan.key("neighbors")) as folder:
        graph = {n: adata.obsp[n] for n in ("connectivities", "distances")}
        write_entries(folder, {**graph, "uns": adata.uns["neighbors"]})
    return {"units": n_cells, "unit": "cells"}


def umap(session: Session) -> Facts:
    """An embedding of the graph, in the memory of one worker."""
    plan = session.plan
    assert plan.profile.umap
    places = session.provider.umap(_graph(session), plan.profile.umap, seed=plan.profile.seed)
    with session.results.making(plan.key("umap")) as folder:
        write_entries(folder, {"umap": places})
    return {"units": len(places), "unit": "cells"}


def leiden(session: Session) -> Facts:
    """Clusters of the graph, in the memory of one worker."""
    plan = session.plan
    assert plan.profile.leiden
    found = session.provider.leiden(_graph(session), plan.profile.leiden, seed=plan.profile.seed)
    with session.results.making(plan.key("leiden")) as folder:
        write_entries(folder, {"clusters": found})
    return {"n_clusters": int(found.max()) + 1}


def _embedded(session: Session) -> Any:
    """AnnData without a matrix: the principal components."""
    import anndata
    import pandas as pd

    scores_ = session.results.read(session.plan.key("pca"), "scores")
    index = pd.RangeIndex(len(scores_)).astype(str)
    return anndata.AnnData(obs=pd.DataFrame(index=index), obsm={"X_pca": scores_})


def _graph(session: Session) -> Any:
    adata = _embedded(session)
    key = session.plan.key("neighbors")
    for name in ("connectivities", "distances"):
        adata.obsp[name] = session.results.read(key, name)
    adata.uns["neighbors"] = session.results.read(key, "uns")
    return adata


def score_sets(session: Session) -> Facts:
    """Scores of gene sets: one pass for the genes' means, one for the cells."""
    plan = session.plan
    assert plan.counts
    names = session.gene_names
    place = {name: i for i, name in enumerate(names)}
    sums = np.sum(session.each(gene_sums), axis=0)
    means = sums / int(session.cells.sum())
    sets: list[list[int]] = []
    for title, genes in plan.counts.scores.items():
        known = [g for g in genes if g in place]
        controls = (
            scores.control_genes(means, names, known, seed=plan.profile.seed) if known else []
        )
        if not controls:
            why = "no control genes are left" if known else "none of its genes is kept"
            raise AtlasError(f"the gene set {title!r} cannot be scored: {why}")
        if len(known) < len(genes):
            _log.warning("%d genes of the set %r are not there", len(genes) - len(known), title)
        sets += [[place[g] for g in known], controls]
    found = np.concatenate(session.each(cell_scores, sets))
    with session.results.making(plan.key("scores")) as folder:
        write_entries(folder, {"scores": found[:, ::2] - found[:, 1::2]})
    return {"n_sets": len(plan.counts.scores)}


def gene_sums(path: str, number: int) -> np.ndarray:
    """Sum of the normalised expression of each gene in a block."""
    plan = AtlasPlan.load(path)
    return scores.column_sums(kept.read_values(plan, *plan.bounds[number], normalized=True))


def cell_scores(path: str, number: int, sets: list[list[int]]) -> np.ndarray:
    """Means of gene sets in the cells of a block."""
    plan = AtlasPlan.load(path)
    return scores.set_means(kept.read_values(plan, *plan.bounds[number], normalized=True), sets)


def rank(session: Session) -> Facts:
    """Genes that tell groups apart; three passes. The last step that works on all genes."""
    plan = session.plan
    step = plan.profile.rank
    assert step
    by = step.by or (plan.profile.leiden.key if plan.profile.leiden else "")
    codes, names = frames.categories(session.column(by), session.cells, by)
    import pandas as pd

    adata = session.normalized()
    adata.obs[by] = pd.Categorical.from_codes(codes, names)
    found = session.provider.rank(adata, step, by)
    with session.results.making(plan.key("rank")) as folder:
        write_entries(folder, {"rank": found})
    session.forget(RAW)
    return {"n_groups": len(names)}


def aggregate(session: Session) -> Facts:
    """The matrix summed up by groups of cells; one pass."""
    plan = session.plan
    step = plan.profile.aggregate
    assert step
    by = step.by or (plan.profile.leiden.key if plan.profile.leiden else "")
    codes, names = frames.categories(session.column(by), session.cells, by)
    everywhere = np.full(len(session.cells), -1, np.int64)
    everywhere[session.cells] = codes
    parts = [everywhere[a:b][session.cells[a:b]] for a, b in plan.bounds]
    futures = [
        session.client.submit(
            sums_of_groups, session.path, i, part, len(names), step.of == "normalized", pure=False
        )
        for i, part in enumerate(parts)
    ]
    total: Any = 0
    for future in distributed.as_completed(futures):
        total = total + future.result()
        future.release()
    sizes = np.bincount(codes[codes >= 0], minlength=len(names))
    found = summaries(total, sizes, step.functions)
    with session.results.making(plan.key("aggregate")) as folder:
        write_entries(folder, {**found, "groups": np.array(names, object), "sizes": sizes})
    return {"n_groups": len(names)}


def sums_of_groups(
    path: str,
    number: int,
    codes: np.ndarray,
    n: int,
    normalized: bool,  # noqa: FBT001  a task's
) -> np.ndarray:
    """Sums of groups of cells in a block."""
    plan = AtlasPlan.load(path)
    block = kept.read_values(plan, *plan.bounds[number], normalized=normalized)
    return group_sums(block, codes, n)


STEPS: dict[str, Callable[[Session], Facts]] = {
    "quality": quality,
    "keep": keep,
    "normalize": normalize,
    "variable": variable,
    "subset": subset,
    "regress": regress,
    "scale": scale,
    "pca": pca,
    "neighbors": neighbors,
    "umap": umap,
    "leiden": leiden,
    "scores": score_sets,
    "rank": rank,
    "aggregate": aggregate,
}
"""What each step does, by its name; `write` is in `cytopave.tasks.atlas.write`."""
