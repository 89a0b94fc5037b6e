"""The last step of an atlas run: the store that users open, or the columns of their table."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from cytopave.engine.atlas import blocks, frames, write
from cytopave.engine.atlas.parameters import Intensities
from cytopave.engine.atlas.plan import AtlasPlan
from cytopave.engine.errors import OutputError

if TYPE_CHECKING:
    import pandas as pd

    from cytopave.tasks.atlas.session import Session


def write_output(session: Session) -> dict[str, Any]:
    """Write and publish everything.

    Raises:
        OutputError: It cannot be written, or the name was taken meanwhile.
    """
    plan = session.plan
    plan.target.check(result_columns(plan))
    try:
        if plan.target.in_place:
            _write_columns(session)
        else:
            _write_store(session)
    except OSError as error:
        raise OutputError(f"{plan.target.path} cannot be written: {error}") from error
    return {"units": int(session.cells.sum()), "unit": "cells"}


def result_columns(plan: AtlasPlan) -> list[str]:
    """Names of the columns of obs that come back to a table."""
    return [plan.profile.leiden.key] if plan.profile.leiden else []


def _write_store(session: Session) -> None:
    plan = session.plan
    staging = plan.target.staging(plan.digest)
    shutil.rmtree(staging, ignore_errors=True)
    zarr.open_group(str(staging), mode="w", zarr_format=3)
    counts = plan.counts
    normalized = counts is None or counts.matrix in ("normalized", "both")
    if counts is None or counts.matrix != "none":
        _write_matrix(session, [(staging / "X", normalized)])
    if counts and counts.matrix == "both":
        zarr.open_group(str(staging / "layers"), mode="a", zarr_format=3)
        _write_matrix(session, [(staging / "layers" / "counts", False)])
    write.write_tables(
        staging,
        {
            "obs": _obs(session),
            "var": _var(session),
            "obsm": _obsm(session),
            "varm": _varm(session),
            "obsp": _obsp(session),
            "uns": _uns(session),
        },
    )
    plan.target.publish(staging)


def _write_matrix(session: Session, places: list[tuple[Path, bool]]) -> None:
    plan = session.plan
    n_cells, n_genes = int(session.cells.sum()), int(session.genes.sum())
    for folder, normalized in places:
        if plan.counts is None:
            write.create_dense(folder, (n_cells, n_genes), plan.rows)
            rows = blocks.bounds(n_cells, plan.rows)
            session.run(_write_rows, rows, str(folder), normalized)
            continue
        ends = np.cumsum([0, *_lengths(session)], dtype=np.int64)
        write.create_csr(folder, ends, n_genes)
        session.run(_write_part, write.plan_parts(ends, plan.rows), str(folder), normalized)


def _lengths(session: Session) -> np.ndarray:
    plan = session.plan
    if session.genes.all() and plan.store.kind == "csr":
        return np.asarray(np.diff(plan.store.row_ends())[session.cells])
    return np.concatenate(session.each(_stored_lengths))


def _stored_lengths(path: str, number: int) -> np.ndarray:
    return write.stored_lengths(AtlasPlan.load(path), number)


def _write_part(path: str, part: write.Part, folder: str, normalized: bool) -> None:  # noqa: FBT001
    write.write_part(AtlasPlan.load(path), Path(folder), part, normalized=normalized)


def _write_rows(
    path: str,
    rows: tuple[int, int],
    folder: str,
    normalized: bool,  # noqa: FBT001
) -> None:
    write.write_rows(AtlasPlan.load(path), Path(folder), *rows, normalized=normalized)


def _obs(session: Session) -> pd.DataFrame:
    import pandas as pd

    plan = session.plan
    obs = session.plan.store.group()["obs"]
    from anndata.io import read_elem

    frame: pd.DataFrame = read_elem(obs)
    frame.index = pd.Index(frames.read_names(plan.store, "obs", unique=plan.unique_names))
    columns: dict[str, Any] = {}
    if plan.counts:
        quality = session.quality("obs")
        columns |= {n: quality[n].to_numpy() for n in quality}
    frame = frame.assign(**columns).loc[session.cells]
    if plan.profile.leiden:
        clusters = session.results.read(plan.key("leiden"), "clusters")
        frame[plan.profile.leiden.key] = as_categories(clusters)
    if plan.counts and plan.counts.scores:
        found = session.results.read(plan.key("scores"), "scores")
        for title, values in zip(plan.counts.scores, found.T, strict=True):
            frame[title] = values
    return frame


def as_categories(clusters: np.ndarray) -> Any:
    """Clusters as scanpy writes them: categories "0", "1", ...; none for -1."""
    import pandas as pd

    names = [str(i) for i in range(int(clusters.max()) + 1)]
    return pd.Categorical.from_codes(clusters, names)


def _var(session: Session) -> pd.DataFrame:
    import pandas as pd
    from anndata.io import read_elem

    plan = session.plan
    frame: pd.DataFrame = read_elem(plan.store.group()["var"])
    frame.index = pd.Index(frames.read_names(plan.store, "var", unique=plan.unique_names))
    if plan.counts:
        quality = session.quality("var")
        frame = frame.assign(**{n: quality[n].to_numpy() for n in quality})
    frame = frame.loc[session.genes].copy()
    if plan.counts:
        columns = session.results.read(plan.key("variable"), "var")
        frame = frame.assign(**{n: columns[n].to_numpy() for n in columns})
    return frame


def _obsm(session: Session) -> dict[str, Any]:
    """What the input has of each cell, such as its place in the image; components, embedding."""
    from anndata.io import read_elem

    plan = session.plan
    group = plan.store.group()
    found = {}
    if "obsm" in group:
        found = {n: values[session.cells] for n, values in read_elem(group["obsm"]).items()}
    found["X_pca"] = session.results.read(plan.key("pca"), "scores")
    if plan.profile.umap:
        found["X_umap"] = session.results.read(plan.key("umap"), "umap")
    return found


def _varm(session: Session) -> dict[str, Any]:
    """Loadings, zero for genes that the PCA did not see, and groups' sums."""
    plan = session.plan
    loadings = session.results.read(plan.key("pca"), "loadings")
    full = np.zeros((len(session.variable), loadings.shape[1]))
    full[session.variable] = loadings
    found = {"PCs": full}
    if plan.profile.aggregate:
        key = plan.key("aggregate")
        for name in plan.profile.aggregate.functions:
            found[f"aggregate_{name}"] = session.results.read(key, name).T
    return found


def _obsp(session: Session) -> dict[str, Any]:
    if not session.plan.profile.neighbors:
        return {}
    key = session.plan.key("neighbors")
    return {n: session.results.read(key, n) for n in ("connectivities", "distances")}


def _uns(session: Session) -> dict[str, Any]:
    plan, results = session.plan, session.results
    profile = plan.profile
    key = plan.key("pca")
    found: dict[str, Any] = {
        "pca": {
            "variance": results.read(key, "variance"),
            "variance_ratio": results.read(key, "ratio"),
            "params": {"zero_center": True, "use_highly_variable": plan.counts is not None},
        },
        "cytopave": json.dumps(provenance(plan)),
    }
    if profile.neighbors:
        found["neighbors"] = results.read(plan.key("neighbors"), "uns")
    if plan.counts and plan.counts.matrix != "counts":
        found["log1p"] = {"base": None}
    if profile.rank:
        found["rank_genes_groups"] = results.read(plan.key("rank"), "rank")
    if profile.aggregate:
        key = plan.key("aggregate")
        names, sizes = (results.read(key, n) for n in ("groups", "sizes"))
        found["aggregate"] = {"groups": names, "sizes": sizes, "of": profile.aggregate.of}
    return found


def provenance(plan: AtlasPlan) -> dict[str, Any]:
    """How the result was made: JSON values."""
    return {
        "version": importlib.metadata.version("cytopave"),
        "store": plan.store.url,
        "provider": plan.provider,
        "profile": plan.profile.model_dump(mode="json"),
        "digest": plan.digest,
    }


def _write_columns(session: Session) -> None:
    """Give the table that was the input its results; the names are listed last.

    Cells that were not kept have no cluster, and NaN for places.
    """
    from anndata.io import write_elem

    plan = session.plan
    assert isinstance(plan.profile, Intensities)
    group = zarr.open_group(str(plan.target.path), mode="r+", use_consolidated=False)
    for name, values in _places(session).items():
        write_elem(group["obsm"], name, values)
    write_elem(group["uns"], "cytopave_atlas", json.dumps(provenance(plan)))
    if plan.profile.leiden is None:
        return
    key, obs = plan.profile.leiden.key, group["obs"]
    others = [n for n in frames.column_names(plan.store, "obs") if n != key]
    obs.attrs["column-order"] = others  # a column that is replaced is not listed meanwhile
    write_elem(obs, key, as_categories(session.column(key)))
    obs.attrs["column-order"] = [*others, key]
    plan.target.refresh()


def _places(session: Session) -> dict[str, np.ndarray]:
    plan, found = session.plan, {}
    entries = {"X_pca": ("pca", "scores"), "X_umap": ("umap", "umap")}
    for name, (step, key) in entries.items():
        if step in plan.steps:
            values = session.results.read(plan.key(step), key)
            full = np.full((len(session.cells), values.shape[1]), np.nan, np.float32)
            full[session.cells] = values
            found[name] = full
    return found
