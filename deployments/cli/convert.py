"""``cytopave convert``: AnnData in HDF5 to a store that ``cytopave atlas`` reads by rows."""

from __future__ import annotations

from pathlib import Path

from cytopave.deployments.cli.console import write, write_json
from cytopave.deployments.cli.options import Common, Flag


def convert(
    source: str,
    /,
    *,
    output: str | None = None,
    x: str = "X",
    overwrite: Flag = False,
    common: Common = Common(),  # noqa: B008
) -> None:
    """Write AnnData again as Zarr by rows; of its matrix no more than a piece is in memory.

    Args:
        source: An .h5ad file, or an AnnData store on Zarr.
        output: Path of the new store; the source's name with .zarr where not given.
        x: What becomes X: X, raw, or layers/NAME.
        overwrite: Replace a store there.
        common: Options of every command.
    """
    from cytopave.engine.atlas.convert import convert_atlas
    from cytopave.engine.atlas.store import open_atlas

    place = Path(output) if output else Path(source).with_suffix(".zarr")
    made = convert_atlas(source, place, x=x, overwrite=overwrite)
    store = open_atlas(made)
    facts = {"store": str(made), "n_cells": store.n_cells, "n_genes": store.n_genes}
    if common.json:
        write_json({**facts, "kind": store.kind})
    else:
        write(f"{made}: {store.n_cells} cells by {store.n_genes} genes ({store.kind})")
