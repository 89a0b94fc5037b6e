"""What other projects' readers see in a store: run by the Python of ``make readers``.

Prints one JSON document. Imports nothing of cytopave, and none of its tests'.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def by_ngio(store: str) -> dict[str, Any]:
    import ngio

    image = ngio.open_ome_zarr_container(store)
    table = image.get_table("cells")
    frame = table.dataframe
    return {
        "labels": image.list_labels(),
        "tables": image.list_tables(),
        "type": type(table).__name__,
        "region": table.reference_label,
        "index": frame.index.tolist(),
        "sum": frame.filter(like="_sum").sum().tolist(),
        "shape": list(image.get_label("cells").shape),
    }


def by_spatialdata(store: str) -> dict[str, Any]:
    import spatialdata
    from spatialdata.models import TableModel, get_table_keys

    table = spatialdata.read_zarr(store, selection=("tables",)).tables["cells"]
    TableModel().validate(table)
    region, region_key, instance_key = get_table_keys(table)
    return {
        "region": region,
        "regions": table.obs[region_key].unique().tolist(),
        "index": table.obs[instance_key].tolist(),
        "spatial": table.obsm["spatial"].mean(axis=0).tolist(),
    }


def by_anndata(store: str) -> dict[str, Any]:
    import anndata

    table = anndata.read_zarr(f"{store}/tables/cells")
    return {"shape": list(table.shape), "sum": table.X[:, 4].sum().item()}


def by_ome_zarr(store: str) -> dict[str, Any]:
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    nodes = list(Reader(parse_url(store))())
    return {str(n.zarr.path).rpartition("/")[2]: [list(d.shape) for d in n.data] for n in nodes}


def by_napari(store: str) -> list[Any]:
    from napari_ome_zarr import napari_get_reader

    layers = napari_get_reader(store)(store)
    return [[kind, facts.get("name"), len(data)] for data, facts, kind in layers]


READERS = {
    "ngio": by_ngio,
    "spatialdata": by_spatialdata,
    "anndata": by_anndata,
    "ome-zarr-py": by_ome_zarr,
    "napari-ome-zarr": by_napari,
}

if __name__ == "__main__":
    print(json.dumps({name: read(sys.argv[1]) for name, read in READERS.items()}))
