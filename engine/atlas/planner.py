"""From a request to a plan: everything that can be refused is refused before a step begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cytopave.engine.atlas import blocks, frames
from cytopave.engine.atlas.parameters import Counts, Intensities
from cytopave.engine.atlas.plan import AtlasPlan
from cytopave.engine.atlas.providers.base import choose_provider
from cytopave.engine.atlas.qc import match_names
from cytopave.engine.atlas.store import AtlasStore, open_atlas
from cytopave.engine.atlas.target import AtlasTarget, atlas_target, scratch_folder
from cytopave.engine.errors import AtlasError, PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.atlas.parameters import Profile

_GIB = 2**30

ROWS_ON_GPU, NNZ_ON_GPU = 50_000, 1 << 28
"""Blocks for GPUs: as in the notebook of the design seeds, if they hold no more than 2 GiB."""


def check_request(
    store: str, *, output: str | None, overwrite: bool, profile: Profile
) -> tuple[AtlasStore, AtlasTarget]:
    """What can be checked at once, from metadata; leaves nothing behind.

    Raises:
        UserError: The store, the request or the output is not usable.
    """
    found = open_atlas(store)
    target = atlas_target(
        found, output, in_place=isinstance(profile, Intensities), overwrite=overwrite
    )
    columns = used_columns(profile)
    made = made_columns(profile)
    for name in columns:
        if name not in made:
            known = frames.column_names(found, "obs")
            if name not in known:
                shown = ", ".join([*known, *made][:30])
                raise AtlasError(
                    f"obs of {found.url} has no column {name!r}: those there will be are {shown}"
                )
    if target.in_place and (profile.rank or profile.aggregate):
        raise PlanError(
            "a table gets clusters and embeddings back; for rank and aggregate name an output"
        )
    target.check([profile.leiden.key] if profile.leiden else [])
    return found, target


def used_columns(profile: Profile) -> list[str]:
    """Columns of obs that a run reads."""
    used = [*profile.keep.columns, *profile.keep.exclude]
    used += [step.by for step in (profile.rank, profile.aggregate) if step and step.by]
    if isinstance(profile, Counts):
        used += profile.regress.keys if profile.regress else []
        used += [profile.variable.batch_key] if profile.variable.batch_key else []
    return used


def made_columns(profile: Profile) -> list[str]:
    """Columns of obs that a run makes itself, before the steps that read some."""
    made = [profile.leiden.key] if profile.leiden else []
    if isinstance(profile, Counts):
        for what in ("counts", *(f"counts_{group}" for group in profile.quality.marks)):
            made += [f"total_{what}", f"log1p_total_{what}"]
        made += ["n_genes_by_counts", "log1p_n_genes_by_counts"]
        made += [f"pct_counts_{group}" for group in profile.quality.marks]
    return made


def make_plan(
    store: str,
    *,
    output: str | None,
    overwrite: bool,
    profile: Profile,
    provider: Literal["auto", "scanpy", "rapids"],
    block_rows: int | None,
    unique_names: bool,
    scratch: Path | None,
    gpu_bytes: int,
    worker_bytes: int,
) -> AtlasPlan:
    """Make the plan of a run, where the workers are; reads names and row ends.

    Args:
        store: Path or URL of the input.
        output: Path of the output; None: the input.
        overwrite: Whether what is there is replaced.
        profile: The steps.
        provider: Who takes them.
        block_rows: Rows of a block; None: by their number of values.
        unique_names: Whether names that come twice get numbers.
        scratch: Folder of all scratch folders; None: beside the output.
        gpu_bytes: Memory of the workers' GPUs together; 0: not all see one.
        worker_bytes: Memory of the smallest worker.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: The store is damaged.
    """
    found, target = check_request(store, output=output, overwrite=overwrite, profile=profile)
    chosen = choose_provider(provider, gpu=gpu_bytes > 0)
    frames.check_chunks(found)
    names = frames.read_names(found, "var", unique=unique_names)
    frames.read_names(found, "obs", unique=unique_names)
    _check_sets(profile, names, found)
    ends = found.row_ends()
    limits: dict[str, Any] = {"rows": ROWS_ON_GPU, "nnz": NNZ_ON_GPU} if chosen == "rapids" else {}
    rows = blocks.plan_rows(ends, block_rows, **limits)
    need = blocks.block_bytes(ends, rows)
    if chosen == "scanpy" and need > worker_bytes:
        raise PlanError(
            f"a block of {rows} rows needs about {need / _GIB:.1f} GiB, and a worker has "
            f"{worker_bytes / _GIB:.1f} GiB: choose fewer rows (block_rows), or fewer workers"
        )
    content = frames.fingerprint(
        found, [c for c in used_columns(profile) if c not in made_columns(profile)]
    )
    return AtlasPlan(
        store=found,
        content=content,
        profile=profile,
        provider=chosen,
        rows=rows,
        unique_names=unique_names,
        worker_bytes=worker_bytes,
        target=target,
        root=scratch_folder(target, scratch) / f"atlas-{content[:16]}",
        resident=chosen == "rapids"
        and isinstance(profile, Counts)
        and blocks.csr_bytes(found.n_cells, found.nnz) <= blocks.GPU_SHARE * gpu_bytes,
    )


def _check_sets(profile: Profile, names: list[str], store: AtlasStore) -> None:
    sets = profile.scores if isinstance(profile, Counts) else {}
    for title, genes in sets.items():
        if not match_names(names, genes).any():
            raise AtlasError(
                f"none of the genes of the set {title!r} is in {store.url}, whose genes are called "
                f"{', '.join(names[:3])}, ..."
            )
