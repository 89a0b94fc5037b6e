"""The pictures of Prefect's UI in docs/images: taken in headless Chromium, of real runs.

    PYTHONPATH=tests/helpers .venv/bin/python benchmarks/screenshots.py docs/images

Needs Chromium (Debian's `chromium`), Node, and `npm install playwright-core` in a folder that
NODE_PATH names. Starts a server, a worker and runs as the tests do, clicks through the form and the
retry as a person would, and checks what the pages show. A few minutes; nothing of it is left.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stores
import tile_functions
from PIL import Image as Pillow
from prefect.utilities.callables import parameter_schema
from server import Server, wait_until
from skimage.filters import threshold_otsu

from cytopave.engine import samples
from cytopave.engine.tiling import Grid
from cytopave.flows import segment_image

if TYPE_CHECKING:
    from uuid import UUID

    import numpy as np
    from prefect.client.schemas import TaskRun

TILE, HALO = (200, 220), 24
SEGMENT = "segment-image/segment-image"
BYTES = 300_000


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="screens-"))
    for name in ("home", "images", "notes"):
        (folder / name).mkdir()
    server = Server(folder / "home", folder / "images")
    try:
        server.start()
        take(server, folder, out)
    finally:
        server.stop()
        shutil.rmtree(folder)


def take(server: Server, folder: Path, out: Path) -> None:
    """All pictures, in the order of a day's work."""
    (field,) = (f for f in samples.nuclei_fields("held-out") if f.name.endswith("RPE1/2198"))
    image = stores.ome_image(
        server.images / "nuclei.zarr", field.image, chunks=(200, 220), n_levels=2
    )
    browser = Browser(server.url.removesuffix("/api"), out)

    with server.client() as client:
        deployment = client.read_deployment_by_name(SEGMENT)
    form = f"/deployments/deployment/{deployment.id}/run"
    browser.do(form, shot="form", height=6900, until="Submit")
    check_form(segment_image, browser.text)
    columns(out / "form.png", 3)
    # Filled in and sent by mouse and keyboard.
    browser.do(form, fill=str(image), clicks=["Watershed", "Submit"])
    (sent,) = wait_for(lambda: server.runs("segment-image"))
    assert sent.parameters["segmenter"]["kind"] == "watershed"
    server.ended(sent.id, "Completed")
    picture = ["Artifacts", "picture"]
    browser.do(f"/runs/flow-run/{sent.id}", clicks=picture, shot="picture", height=1150)
    assert browser.pictures == [(435, 384), (512, 512)], browser.pictures

    # A run that takes its time, and of which two tiles fail.
    notes = folder / "notes"
    grid = Grid(field.image.shape, TILE, (HALO, HALO))
    for tile in (9, 10):
        key = tile_functions.key_of(field.image[grid[tile].window.slices])
        (notes / key).write_text("error")
    kwargs = {"folder": str(notes), "seconds": 5, "above": float(threshold_otsu(field.image))}
    parameters = {
        "image": str(image),
        "name": "nuclei",
        "segmenter": {"kind": "custom", "function": "tile_functions:recorded", "kwargs": kwargs},
        "tiling": {"tile": TILE, "halo": HALO},
        "workers": 2,
    }
    server.prefect("deployment", "run", SEGMENT, "--params", json.dumps(parameters))
    run = server.runs("segment-image")[-1]
    page = f"/runs/flow-run/{run.id}"
    wait_until(lambda: tiles_done(server, run.id) > 0, 120, server.log)
    browser.do(page, clicks=["Artifacts", "tiles"], shot="progress", height=520)
    assert tiles_done(server, run.id) < 100, "the picture of the progress came too late"
    server.ended(run.id, "Failed")
    browser.do(page, clicks=["Artifacts", "failed-tiles"], shot="failed-tiles", height=520)
    for note in notes.iterdir():
        note.unlink()
    before = {t.id for t in server.task_runs(run.id)}
    browser.do(page, clicks=["Retry", "Retry!"])
    server.ended(run.id, "Completed")
    assert sum(tile_functions.calls(notes).values()) == 2, "the retry computed something else"
    check_retry([t for t in server.task_runs(run.id) if t.id not in before])
    browser.do(page, shot="run", height=1000)
    browser.do(page, clicks=["Artifacts", "plan"], shot="plan", height=620)
    browser.do(page, clicks=["Artifacts", "stages"], shot="stages", height=680)
    browser.do(page, clicks=["Artifacts", "seams"], shot="seams", height=640)

    sweep(server, field.image, browser)


def check_form(flow: Any, text: str) -> None:
    """Every parameter is there, with what is said of it."""
    seen = " ".join(text.split())
    for name, field in parameter_schema(flow).properties.items():
        assert name in seen, name
        assert " ".join(field["description"].split()) in seen, f"{name}: {field['description']}"


def columns(file: Path, n: int) -> None:
    """Lay a long page out beside itself, without the menu on its left."""
    long = Pillow.open(file).convert("RGB")
    left, height = 250, -(-long.height // n)
    wide = Pillow.new("RGB", (n * (long.width - left), height), long.getpixel((0, 0)))
    for i in range(n):
        part = long.crop((left, i * height, long.width, min((i + 1) * height, long.height)))
        wide.paste(part, (i * (long.width - left), 0))
    keep(wide, file)


def check_retry(again: list[TaskRun]) -> None:
    """What a click on Retry started: two batches anew, the others from their results."""
    states = {t.name: t.state_name for t in again if t.name.startswith("segment batch")}
    computed = {name for name, state in states.items() if state != "Cached"}
    assert computed == {"segment batch 5 (tiles 9, 13)", "segment batch 6 (tiles 10, 14)"}, states
    assert len(states) == 8, states


def keep(picture: Pillow.Image, file: Path) -> None:
    """Save a picture small enough for a manual."""
    small = picture.convert("RGB").quantize(256, Pillow.Quantize.FASTOCTREE)
    small.save(file, optimize=True)
    assert file.stat().st_size < BYTES, f"{file} has {file.stat().st_size} bytes"


def sweep(server: Server, pixels: np.ndarray, browser: Browser) -> None:
    """A sweep that finds one image done and two new ones."""
    for name in ("monday", "tuesday"):
        stores.ome_image(server.images / f"{name}.zarr", pixels[:300, :300], chunks=(150, 150))
    parameters = {
        "folder": str(server.images),
        "segmenter": {"kind": "threshold"},
        "settled_seconds": 0,
    }
    told = ("deployment", "run", "sweep-images/sweep-images", "--params", json.dumps(parameters))
    server.prefect(*told, "--watch", "--watch-interval", "1")
    (run,) = server.runs("sweep-images")
    for child in server.runs("segment-image")[-2:]:
        server.ended(child.id, "Completed")
    page = f"/runs/flow-run/{run.id}"
    browser.do(page, clicks=["Artifacts", "sweep"], shot="sweep", height=520)
    # A click on a row of the table leads to the run.
    browser.do(page, clicks=["Artifacts", "sweep", "started"])
    assert "nuclei" not in browser.title, browser.title
    assert ".zarr -> cells" in browser.title, browser.title


def tiles_done(server: Server, run: UUID) -> float:
    shown = server.artifacts(run).get("tiles")
    return float(shown[-1].data) if shown else 0.0


def wait_for(value: Any) -> Any:
    wait_until(value, 120)
    return value()


class Browser:
    """Chromium, one page after another."""

    def __init__(self, address: str, out: Path) -> None:
        self._address, self._out = address, out
        self.title = self.text = ""
        self.pictures: list[tuple[int, int]] = []

    def do(self, path: str, *, clicks: Any = (), shot: str = "", **options: Any) -> None:
        """Open a page, click on texts, and keep what is to be seen then."""
        file = self._out / f"{shot}.png"
        task = {"url": self._address + path, "clicks": list(clicks), **options}
        if shot:
            task["file"] = str(file)
        done = subprocess.run(
            ["node", str(Path(__file__).with_suffix(".cjs"))],
            input=json.dumps(task),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={"CHROMIUM": shutil.which("chromium") or "", **os.environ},
        )
        seen = json.loads(done.stdout)
        self.title = seen["title"]
        self.text = seen["text"]
        self.pictures = [tuple(size) for size in seen["pictures"]]
        if shot:
            keep(Pillow.open(file), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
