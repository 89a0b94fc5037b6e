"""Memory and time of what the report page takes from a table, by the number of objects.

    python benchmarks/report_page.py --folder FOLDER [--objects 10000 100000 1000000 10000000]

A made-up table: sizes, shapes, four channels, eighteen clusters and their map. *Figures* is
distributions, counts and averages of the clusters and the binned map: all of the page that grows
with the table, in a process of its own; memory is its peak, as the kernel tells it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import zarr
from tables import machine, print_table

CHUNK = 1 << 16
CHANNELS = ("DAPI", "actin", "tubulin", "p53")
STATISTICS = ("mean", "min", "max", "std", "sum")
N_CLUSTERS = 18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--objects", type=int, nargs="+", default=[10**k for k in (4, 5, 6, 7)])
    parser.add_argument("--part", choices=("figures",))
    args = parser.parse_args()
    if args.part:
        print(json.dumps(figures(args.folder)))
        return
    print(machine(), flush=True)
    rows = []
    for n in args.objects:
        folder = args.folder / str(n)
        shutil.rmtree(folder, ignore_errors=True)
        make(folder, n)
        command = [sys.executable, __file__, "--folder", str(folder), "--part", "figures"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        if (found["objects"], found["on the map"]) != (n, n):
            raise SystemExit(f"{found} of {n} objects were counted")
        rows.append({k: f"{v:.1f}" if isinstance(v, float) else v for k, v in found.items()})
        shutil.rmtree(folder)
    print_table("One process, by the number of objects", rows)


def make(folder: Path, n: int) -> None:
    """The arrays of a table that the page reads, as cytopave and anndata write them."""
    rng = np.random.default_rng(0)
    obs = ("label", "area", "equivalent_diameter", "eccentricity", "solidity")
    features = [f"{c}_{s}" for c in CHANNELS for s in STATISTICS]
    attributes = {"cytopave": {"units": ["micrometer", "micrometer"]}}
    zarr.create_group(str(folder), attributes=attributes, overwrite=True)
    arrays = {
        "X": (n, len(features)),
        **{f"obs/{name}": (n,) for name in obs},
        "obs/leiden/codes": (n,),
        "obsm/X_umap": (n, 2),
    }
    for name, shape in arrays.items():
        kind = "i1" if name.endswith("codes") else "i8" if name.endswith("label") else "f8"
        zarr.create_array(
            str(folder / name), shape=shape, dtype=kind, chunks=(min(n, CHUNK), *shape[1:])
        )
    names = zarr.create_array(
        str(folder / "obs/leiden/categories"), shape=(N_CLUSTERS,), dtype=str, chunks=(N_CLUSTERS,)
    )
    names[:] = np.array([str(i) for i in range(N_CLUSTERS)], object)
    opened = {name: zarr.open_array(str(folder / name)) for name in arrays}
    centres = rng.uniform(-10, 10, (N_CLUSTERS, 2))
    for start in range(0, n, CHUNK):
        rows = slice(start, min(n, start + CHUNK))
        m = rows.stop - start
        codes = rng.geometric(0.15, m) % N_CLUSTERS
        area = rng.lognormal(4, 0.5, m)
        values = {
            "X": rng.gamma(2, 500, (m, len(features))),
            "obs/label": np.arange(start, rows.stop) + 1,
            "obs/area": area,
            "obs/equivalent_diameter": np.sqrt(4 * area / np.pi),
            "obs/eccentricity": rng.beta(5, 2, m),
            "obs/solidity": rng.beta(30, 2, m),
            "obs/leiden/codes": codes,
            "obsm/X_umap": centres[codes] + rng.normal(0, 1.2, (m, 2)),
        }
        for name, block in values.items():
            opened[name][rows] = block


def figures(folder: Path) -> dict[str, object]:
    """Everything that is read of the table."""
    from cytopave.engine.omezarr.folders import Folder
    from cytopave.engine.show import sections
    from cytopave.engine.show.classes import count_classes, map_of
    from cytopave.engine.tables.read import Table

    attributes = {"cytopave": {"units": ["micrometer", "micrometer"]}}
    obs = ("label", "area", "equivalent_diameter", "eccentricity", "solidity", "leiden")
    features = tuple(f"{c}_{s}" for c in CHANNELS for s in STATISTICS)
    cells = Table(Folder(str(folder)), attributes, obs, features)
    since = time.monotonic()
    found = sections.measured(cells)
    between = time.monotonic()
    classes = count_classes(cells, "leiden", ["area", *(f"{c}_mean" for c in CHANNELS)])
    chart = map_of(cells, classes)
    assert chart is not None
    assert int(chart.counts.sum()) == len(cells)
    return {
        "objects": found["area"].n,
        "on the map": chart.n,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "distributions: s": between - since,
        "clusters and map: s": time.monotonic() - between,
    }


if __name__ == "__main__":
    main()
