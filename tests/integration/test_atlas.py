"""The atlas flow on worker processes: resuming, dying workers, the bridge, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("scanpy")

import anndata
import dask
import distributed
import pyarrow.parquet
import stores
import worlds
from atlases import make_atlas
from distributed.utils import get_mp_context
from measured import measured
from traps import Resident, Traps

from cytopave.engine.atlas.parameters import (
    Counts,
    Intensities,
    Keep,
    KeepCells,
    Leiden,
    Neighbors,
    Pca,
    Scale,
    Variable,
)
from cytopave.engine.errors import AtlasError, OutputError
from cytopave.engine.show.classes import class_column, count_classes
from cytopave.engine.tables.export import export_parquet
from cytopave.engine.tables.read import open_table
from cytopave.tasks.atlas.session import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.usefixtures("prefect_api"), pytest.mark.filterwarnings("ignore")]

SHORT: dict[str, Any] = {"neighbors": None, "umap": None, "leiden": None}
PROFILE = Counts(
    keep=Keep(min_genes=10), variable=Variable(n_top=40), scale=Scale(), pca=Pca(n_comps=5), **SHORT
)


def flow(store: Path, address: str, **parameters: Any) -> Any:
    from cytopave.flows import preprocess_atlas

    request = {"output": str(store.parent / "out.zarr"), "cluster": address, "profile": PROFILE}
    run: Callable[..., Any] = preprocess_atlas
    return run(str(store), **(request | {"block_rows": 60} | parameters))


def test_a_failed_run_continues_at_the_step_that_failed(tmp_path: Path, dask_address: str) -> None:
    store = make_atlas(tmp_path, 300, 120).path
    wrong = PROFILE.model_copy(update={"pca": Pca(n_comps=200)})
    with pytest.raises(AtlasError, match=r"set pca\.n_comps to that or less"):
        flow(store, dask_address, profile=wrong)
    assert not (tmp_path / "out.zarr").exists()
    report = flow(store, dask_address)
    # The workers' matrices ended with the run; what is on disk is not made again.
    assert report.reused == ["quality", "keep", "normalize", "variable"]
    assert [s.name for s in report.stages][-2:] == ["pca", "write"]
    found = anndata.read_zarr(report.output)
    assert found.shape == (report.n_cells, report.n_genes)
    assert (report.n_variable, report.n_comps, report.n_clusters) == (
        int(found.var["highly_variable"].sum()),
        5,
        None,
    )
    with distributed.Client(dask_address, set_as_default=False) as client:
        assert not [n for n in client.list_datasets() if n.startswith(PREFIX)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atlas.zarr", "out.zarr"]
    with pytest.raises(OutputError, match="exists"):
        flow(store, dask_address)


def test_kept_steps_serve_runs_of_other_parameters(tmp_path: Path, dask_address: str) -> None:
    store = make_atlas(tmp_path, 300, 120).path
    first = flow(store, dask_address, keep_scratch=True)
    again = flow(store, dask_address, keep_scratch=True, overwrite=True)
    assert first.reused == []
    assert again.reused == ["quality", "keep", "normalize", "variable", "pca"]
    assert first.digest == again.digest
    other = PROFILE.model_copy(update={"variable": Variable(n_top=30)})
    changed = flow(store, dask_address, profile=other, overwrite=True)
    assert changed.reused == ["quality", "keep", "normalize"]


@pytest.fixture
def fragile() -> Iterator[distributed.Client]:
    """Two workers of which a task may take one down, and no second one.

    They are forked from a process that has imported what they need: most of what a new one costs.
    """
    config = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.deploy.lost-worker-timeout": "1 hour",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with dask.config.set(config):
        get_mp_context().set_forkserver_preload(["cytopave.flows.atlas", "prefect_dask", "scanpy"])
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            yield client


EVERY_STEP = [
    *("quality", "keep", "normalize", "variable", "subset", "scale", "pca", "neighbors", "leiden"),
    "write",
]
GRAPH: dict[str, Any] = {
    "neighbors": Neighbors(n_neighbors=5),
    "leiden": Leiden(resolution=0.2),
}


@pytest.mark.parametrize(
    ("places", "more"),
    [(EVERY_STEP, GRAPH), (["pca", "read_kept", "read_block"], {})],
    ids=["every step", "in the middle of blocks"],
)
def test_workers_may_die(
    tmp_path: Path, fragile: distributed.Client, places: list[str], more: dict[str, Any]
) -> None:
    """Once in a step: one that ends its worker twice is given up."""
    store = make_atlas(tmp_path, 300, 120).path
    profile = PROFILE.model_copy(update=more)
    (tmp_path / "marks").mkdir()
    fragile.register_plugin(Traps(tmp_path / "marks", places, 1))
    report = flow(store, fragile.scheduler.address, profile=profile)
    assert sorted(p.name for p in (tmp_path / "marks").iterdir()) == [
        f"{name}-0" for name in sorted(places)
    ]
    again = {"profile": profile, "output": str(tmp_path / "again.zarr")}
    undisturbed = flow(store, fragile.scheduler.address, **again)
    found, expected = (anndata.read_zarr(r.output) for r in (report, undisturbed))
    assert found.obs.equals(expected.obs)
    assert found.var.equals(expected.var)
    assert (found.X != expected.X).nnz == 0
    np.testing.assert_allclose(found.obsm["X_pca"], expected.obsm["X_pca"], atol=1e-5)


def test_workers_that_keep_x_may_die_too_and_let_it_go_at_the_end(
    tmp_path: Path, fragile: distributed.Client
) -> None:
    """Each had some of its blocks, which are read anew; also where the run fails, all are gone."""
    store = make_atlas(tmp_path, 300, 120).path
    expected = flow(store, fragile.scheduler.address, output=str(tmp_path / "expected.zarr"))
    (tmp_path / "marks").mkdir()
    fragile.register_plugin(Resident())
    fragile.register_plugin(Traps(tmp_path / "marks", ["variable", "subset"], 1))
    report = flow(store, fragile.scheduler.address)
    assert (expected.resident, report.resident) == (False, True)
    assert len([*(tmp_path / "marks").iterdir()]) == 2
    one, other = (anndata.read_zarr(r.output) for r in (report, expected))
    assert one.obs.equals(other.obs)
    assert one.var.equals(other.var)
    np.testing.assert_array_equal(one.obsm["X_pca"], other.obsm["X_pca"])
    assert not fragile.list_datasets()
    wrong = PROFILE.model_copy(update={"keep": Keep(min_genes=10_000)})
    with pytest.raises(AtlasError, match="no cells of 300 are left"):
        flow(store, fragile.scheduler.address, profile=wrong, overwrite=True)
    assert not fragile.list_datasets()


def test_a_step_that_ends_every_worker_is_named_and_the_rest_is_kept(
    tmp_path: Path, fragile: distributed.Client
) -> None:
    store = make_atlas(tmp_path, 300, 120).path
    (tmp_path / "marks").mkdir()
    fragile.register_plugin(Traps(tmp_path / "marks", ["variable"], 2))
    with pytest.raises(AtlasError, match="the step variable ended its worker, 2 times in a row"):
        flow(store, fragile.scheduler.address)
    report = flow(store, fragile.scheduler.address)
    assert report.reused == ["quality", "keep", "normalize"]


def test_from_labels_to_clusters_of_the_same_table(tmp_path: Path, dask_address: str) -> None:
    labels = worlds.disks((300, 300), radius=8, pitch=25)
    bright = np.isin(labels, np.unique(labels)[1::2])
    noise = np.random.default_rng(0).integers(0, 40, labels.shape)
    pixels = np.stack([(labels > 0) * 900 + noise, bright * 700 + noise]).astype(np.uint16)
    image = stores.ome_image(tmp_path / "image.zarr", pixels, axes="cyx")
    stores.group(image / "labels", {"ome": {"version": "0.5", "labels": ["cells"]}})
    stores.ome_image(image / "labels" / "cells", labels.astype(np.uint32))
    measured(image, "cells")
    profile = Intensities(
        keep=KeepCells(features=["*mean*"]), umap=None, leiden=Leiden(resolution=0.02)
    )
    table = image / "tables" / "cells"
    report = flow(table, dask_address, profile=profile, output=None)
    assert report.in_place
    obs = anndata.read_zarr(table).obs
    clusters = obs.groupby("leiden", observed=True)["label"].apply(set)
    ids = np.unique(labels)[1:]
    assert sorted(map(sorted, clusters)) == sorted(
        map(sorted, (set(np.unique(labels[bright])), set(ids) - set(np.unique(labels[bright]))))
    )
    rows = open_table(image, "cells").read()
    assert rows["leiden"].tolist() == obs["leiden"].tolist()
    # The report page finds them by what the run wrote.
    cells = open_table(image, "cells")
    assert class_column(cells) == "leiden"
    found = count_classes(cells, "leiden", ["area"])
    sizes = dict(zip(found.names, found.sizes.tolist(), strict=True))
    assert sizes == obs["leiden"].value_counts().to_dict()
    export_parquet(open_table(image, "cells"), tmp_path / "cells.parquet")
    exported = pyarrow.parquet.read_table(tmp_path / "cells.parquet")
    assert exported["leiden"].to_pylist() == obs["leiden"].tolist()


def test_the_command_says_what_it_did_and_what_cannot_be(tmp_path: Path, dask_address: str) -> None:
    store = make_atlas(tmp_path, 300, 120).path
    adata = anndata.read_zarr(store)
    adata.write_h5ad(tmp_path / "a.h5ad")

    def command(*tokens: str) -> subprocess.CompletedProcess[str]:
        program = "from cytopave.deployments.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, *tokens],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    made = command("convert", "a.h5ad", "--json")
    assert json.loads(made.stdout)["n_cells"] == 300, made.stderr
    options = [
        "keep.min_genes=10",
        "variable.n_top=40",
        "umap=null",
        "leiden=null",
        "neighbors=null",
    ]
    tokens = [t for option in options for t in ("--set", option)]
    ran = command("atlas", "a.zarr", "--output", "o.zarr", *tokens, "--cluster", dask_address)
    assert ran.returncode == 0, ran.stderr
    assert "o.zarr" in ran.stdout
    assert anndata.read_zarr(tmp_path / "o.zarr").obsm["X_pca"].shape[1] <= 50
    for tokens_, message in (
        (["atlas", "a.h5ad", "--output", "p.zarr"], "convert it first"),
        (["atlas", "a.zarr"], "name it (output)"),
        (["atlas", "a.zarr", "--output", "o.zarr"], "exists"),
        (["atlas", "a.zarr", "--output", "p.zarr", "--set", "pca.n=3"], "those there are n_comps"),
        (["atlas", "a.zarr", "--output", "p.zarr", "--set", "neighbors=null"], "UMAP and Leiden"),
    ):
        ended = command(*tokens_)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert message in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
