"""Operated as Prefect users do: a server, a work pool, a worker, deployments, retries, a schedule.

Slow, and so few: each test follows one story from its beginning to its end.
"""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
import tile_functions
from PIL import Image as Pillow
from runs import components, labels_of, provenance
from server import wait_until
from skimage.filters import threshold_otsu

from cytopave.blocks import ImageStore
from cytopave.engine import samples
from cytopave.engine.segmenters import Custom
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from prefect.client.schemas import FlowRun
    from prefect.client.schemas.objects import Log
    from server import Server

SEGMENT = "segment-image/segment-image"
TILE, HALO = (200, 220), 24


@pytest.fixture(scope="module")
def nuclei() -> np.ndarray:
    """A real image of nuclei."""
    name = "validation/2022-05-26_RPE1/2198"
    (field,) = (f for f in samples.nuclei_fields("held-out") if f.name == name)
    return field.image


class Tiles:
    """What was computed, tile by tile, and what a tile is told to do instead."""

    def __init__(self, notes: Path, pixels: np.ndarray) -> None:
        self.notes, self.pixels = notes, pixels
        self.grid = Grid(pixels.shape, TILE, (HALO, HALO))
        self.above = float(threshold_otsu(pixels))
        notes.mkdir()

    @property
    def method(self) -> Custom:
        kwargs = {"folder": str(self.notes), "above": self.above}
        return Custom(function="tile_functions:recorded", kwargs=kwargs, gpu=False)

    def _key(self, tile: int) -> str:
        return tile_functions.key_of(self.pixels[self.grid[tile].window.slices])

    def tell(self, tile: int, what: str) -> None:
        (self.notes / self._key(tile)).write_text(what)

    def forgive(self) -> None:
        for path in self.notes.iterdir():
            path.unlink()

    def calls(self) -> dict[int, int]:
        found = tile_functions.calls(self.notes)
        keyed = {tile: found[self._key(tile)] for tile in range(len(self.grid))}
        return {tile: n for tile, n in keyed.items() if n}


def test_a_failed_batch_is_retried_alone(
    server: Server, nuclei: np.ndarray, tmp_path: Path
) -> None:
    """A worker dies in a batch and a tile fails; the retry of the run computes that tile alone."""
    image = stores.ome_image(tmp_path / "nuclei.zarr", nuclei, chunks=(200, 220), n_levels=2)
    tiles = Tiles(tmp_path / "notes", nuclei)
    tiles.tell(6, "kill 1")  # the second tile of its batch: (2, 6)
    tiles.tell(9, "error")
    everything = set(range(len(tiles.grid)))
    parameters = {
        "image": str(image),
        "segmenter": tiles.method.model_dump(mode="json"),
        "tiling": {"tile": TILE, "halo": HALO},
        "workers": 2,
    }
    told = server.prefect("deployment", "run", SEGMENT, "--params", json.dumps(parameters),
                          "--watch", "--watch-interval", "1", status=1)  # fmt: skip
    (run,) = server.runs("segment-image")
    assert str(run.id) in told
    assert (run.name, run.state_name) == ("nuclei.zarr -> cells", "Failed")
    assert set(run.tags) == {"cytopave", "label:cells", "method:custom"}
    assert "1 of 8 batches failed" in str(run.state and run.state.message)
    calls = tiles.calls()
    assert calls.pop(2) in (1, 2)  # it may have been under way to its file when the worker died
    assert calls == dict.fromkeys(everything - {2}, 1) | {6: 2}
    assert stores.listed(image) == []

    # What an operator reads on the run's page.
    artifacts = server.artifacts(run.id)
    assert artifacts["tiles"][-1].type == "progress"
    assert artifacts["tiles"][-1].data == 100.0
    memory = r"\| Memory \| [\d.]+ MiB a tile, of [\d.]+ [MG]iB"
    assert re.search(memory, artifacts["plan"][-1].data)
    (row,) = json.loads(artifacts["failed-tiles"][-1].data)
    assert row == {
        "tile": 9,
        "pixels": str(tiles.grid[9].core),
        "why": "ValueError: these pixels are not to my taste",
    }
    assert f"prefect flow-run retry {run.id}" in artifacts["failed-tiles"][-1].description
    # Both come a while after the run has ended: tasks from events, logs as each process ends.
    states = {
        "segment batch 5 (tiles 9, 13)": "Failed",
        "segment batch 2 (tiles 2, 6)": "Completed",
    }
    wait_until(
        lambda: states.items() <= {(t.name, t.state_name) for t in server.task_runs(run.id)},
        120,
        server.log,
    )
    assert not any(t.tags for t in server.task_runs(run.id))  # each tag would cost seconds

    def said() -> list[Log]:
        return [log for log in server.logs(run.id) if "not to my taste" in log.message]

    wait_until(
        lambda: any(n.task_run_id and n.name.startswith("cytopave.engine") for n in said()),
        120,
        server.log,
    )
    wait_until(lambda: any("Traceback" in log.message for log in said()), 120, server.log)

    tiles.forgive()
    server.prefect("flow-run", "retry", str(run.id))
    run = server.ended(run.id, "Completed")
    assert run.run_count == 2
    assert tiles.calls() == {9: 1}
    np.testing.assert_array_equal(labels_of(image), components(nuclei > tiles.above))
    made = provenance(image)
    assert made["n_reused"] == len(everything) - 1
    artifacts = server.artifacts(run.id)
    assert len(artifacts["plan"]) == 2
    assert [row["stage"] for row in json.loads(artifacts["stages"][-1].data)][:2] == [
        "plan",
        "segment",
    ]
    seams = json.loads(artifacts["seams"][-1].data)
    assert {tuple(row) for row in seams} == {("count", "axis y", "axis x")}
    assert seams[0]["count"] == "objects at seams"
    assert not list(tmp_path.glob(".cytopave"))
    shown = re.findall(r"data:image/jpeg;base64,([^)]+)", artifacts["picture"][-1].data)
    sizes = [Pillow.open(io.BytesIO(base64.b64decode(data))).size for data in shown]
    assert sizes == [(435, 384), (512, 512)]
    assert sum(map(len, shown)) < 200_000


def test_a_schedule_labels_what_arrives(
    server: Server, nuclei: np.ndarray, dask_address: str, tmp_path: Path
) -> None:
    """Every few seconds a sweep starts; an image that comes later is labelled, each only once."""
    small = nuclei[:300, :300]
    above = float(threshold_otsu(small))
    first = stores.ome_image(server.images / "first.zarr", small, chunks=(150, 150))
    with server.client() as client:
        store = ImageStore(url=str(server.images)).save("arrivals")
        deployment = client.read_deployment_by_name("sweep-images/sweep-images")
        (paused,) = deployment.schedules
        assert paused.active is False
        assert deployment.parameters["folder"] == str(server.images)
        chosen = {
            **deployment.parameters,
            # As the UI says it.
            "folder": {"$ref": {"block_document_id": str(store)}},
            "segmenter": {"kind": "threshold", "threshold": above},
            "parameters": {"cluster": dask_address},
            "settled_seconds": 0,
        }
        answer = client.request(
            "PATCH",
            "/deployments/{id}",
            path_params={"id": deployment.id},
            json={"parameters": chosen},
        )
        answer.raise_for_status()
    server.prefect("deployment", "schedule", "create", "sweep-images/sweep-images",
                   "--interval", "8", "--replace", "--accept-yes")  # fmt: skip
    wait_until(lambda: _images(server) >= {str(first)} and _completed(server), 300, server.log)
    # As a whole: no sweep finds a part of it.
    second = server.images / "second.zarr"
    stores.ome_image(tmp_path / "second.zarr", small[::-1], chunks=(150, 150)).rename(second)
    wait_until(lambda: stores.listed(first) and stores.listed(second), 300, server.log)
    begun = {r.id for r in server.runs("sweep-images") if r.start_time}
    wait_until(lambda: {r.id for r in _completed(server)} - begun, 300, server.log)
    server.prefect("deployment", "schedule", "clear", "sweep-images/sweep-images", "--accept-yes")
    for image, pixels in ((first, small), (second, small[::-1])):
        np.testing.assert_array_equal(labels_of(image), components(pixels > above))

    ours = [
        r
        for r in server.runs("segment-image")
        if r.parameters["image"] in map(str, (first, second))
    ]
    assert len(ours) == 2
    for run in ours:
        assert server.ended(run.id, "Completed").parent_task_run_id is not None
        page = server.artifacts(run.id)["plan"][-1].data
        assert re.search(r"\| Started by \| \[another run\]\(\S+/runs/flow-run/", page)
        (tag,) = (t for t in run.tags if t.startswith("sweep:"))
        assert tag == f"sweep:{server.images.name} -> cells"
    # The sweeps' pages lead to the runs, and say why nothing else was started.
    pages = [server.artifacts(r.id)["sweep"][-1].data for r in _completed(server)]
    for run in ours:
        link = re.compile(rf"\[started\]\(\S+/runs/flow-run/{run.id}\)")
        assert sum(bool(link.search(page)) for page in pages) == 1
    assert "| labelled | none |" in pages[-1]
    assert len(pages) > 2


def _images(server: Server) -> set[str]:
    """Images of which runs were started."""
    return {r.parameters["image"] for r in server.runs("segment-image")}


def _completed(server: Server) -> list[FlowRun]:
    return [r for r in server.runs("sweep-images") if r.state_name == "Completed"]
