"""Which cells and genes are kept: masks from the metrics of all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.atlas.frames import limited
from cytopave.engine.atlas.parameters import Keep
from cytopave.engine.atlas.qc import match_names
from cytopave.engine.errors import AtlasError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from cytopave.engine.atlas.plan import AtlasPlan


def choose_cells(
    plan: AtlasPlan, quality: pd.DataFrame | None, columns: Mapping[str, Any]
) -> np.ndarray:
    """Which cells are kept.

    Args:
        plan: The run.
        quality: Metrics of all cells; None for intensities.
        columns: Further columns of obs that the limits speak of.

    Returns:
        bool (cells,).

    Raises:
        AtlasError: Too few cells are left, or a column cannot be compared.
    """
    step = plan.profile.keep
    limits: dict[str, tuple[float | None, float | None]] = dict(step.columns)
    if isinstance(step, Keep):
        limits["n_genes_by_counts"] = (step.min_genes, step.max_genes)
        limits["total_counts"] = (step.min_counts, step.max_counts)
    mask = np.ones(plan.store.n_cells, bool)
    for name, (low, high) in limits.items():
        values = quality[name] if quality is not None and name in quality else columns[name]
        mask &= limited(_numbers(values, name), low, high)
    for name in step.exclude:
        mask &= ~np.asarray(columns[name]).astype(bool)
    if (n := int(mask.sum())) < 3:
        raise AtlasError(
            f"{n or 'no'} cells of {len(mask)} are left: {_which(limits, step.exclude)}"
        )
    return mask


def choose_genes(plan: AtlasPlan, quality: pd.DataFrame | None, names: Sequence[str]) -> np.ndarray:
    """Which genes or intensities are kept: bool (genes,).

    Raises:
        AtlasError: None is left, or one where there must be more.
    """
    step = plan.profile.keep
    mask = np.ones(len(names), bool)
    if isinstance(step, Keep) and quality is not None:
        mask &= quality["n_cells_by_counts"].to_numpy() >= step.min_cells
    if step.features is not None:
        mask &= match_names(names, step.features)
    n, least = int(mask.sum()), 2 if plan.counts else 1
    if n < least:
        raise AtlasError(
            f"{n or 'no'} genes or columns of {len(mask)} are left, and {least} are needed: change "
            "keep.min_cells or keep.features"
        )
    return mask


def median_sum(sums: Sequence[np.ndarray]) -> float:
    """Median of the cells' counts, cells without any left out.

    Raises:
        AtlasError: No cell has any.
    """
    counts = np.concatenate(sums)
    counts = counts[counts > 0]
    if not len(counts):
        raise AtlasError("no cell has counts in the kept genes: keep more genes")
    return float(np.median(counts))


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise AtlasError(f"keep.columns: the column {name!r} does not hold numbers") from None


def _which(limits: Mapping[str, Any], exclude: Sequence[str]) -> str:
    asked = [*limits, *exclude]
    if not asked:
        return "the store holds no more, and a PCA needs 3"
    return f"relax keep ({', '.join(asked)})"
