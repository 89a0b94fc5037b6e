"""The report page of a real run: parsed, and compared with the table that it shows."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import worlds
import zarr
from PIL import Image as Pillow
from reported import add_clusters, made_report
from runs import labels_of

from cytopave.engine.errors import OutputError, StaleTableError
from cytopave.engine.report import Missing
from cytopave.engine.segmenters import Threshold
from cytopave.engine.show import classes as show_classes
from cytopave.engine.show.files import write_report
from cytopave.engine.show.palette import CLASSES, OTHERS, rgb
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from cytopave.engine.report import Report

NAMES = [str(i) for i in range(13)]


class Made:
    """One run for all tests of this file; each writes the page into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        truth = worlds.disks((420, 400), radius=8, pitch=25)
        noise = np.random.default_rng(0).integers(0, 200, truth.shape)
        self.pixels = np.stack([(truth > 0) * 1000 + truth % 50 * 10, noise]).astype(np.uint16)
        self.image = stores.ome_image(
            folder / "scan.zarr", self.pixels, axes="cyx", n_levels=2, chunks=(1, 100, 100),
            channels=("DAPI", "p53 <nuclear>"),
        )  # fmt: skip
        self.report, self.provenance = made_report(
            self.image,
            segmenter=Threshold(threshold=900),
            tiling=Tiling(tile=(150, 150), halo=20),
            channels=[0],
        )
        self.n = self.report.n_objects
        self.codes = np.random.default_rng(1).integers(-1, len(NAMES), self.n)
        self.places = np.random.default_rng(2).normal(size=(self.n, 2)).astype(np.float32)
        self.places[self.codes < 0] = np.nan

    def page(self, folder: Path, made: Report | None = None, **options: Any) -> Element:
        made = made or self.report
        files = write_report(made, self.provenance, folder, image=str(self.image), **options)
        text = Path(files["page"]).read_text(encoding="utf-8")
        # One file: it fetches nothing, and runs nothing.
        assert not re.search(r"https?://|url\(|@import|<script|<iframe", text)
        for link in re.findall(r"""(?:src|href)=["']([^"']{0,30})""", text):
            assert link.startswith(("data:image/", "#"))
        return ElementTree.fromstring(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("run"))


@pytest.fixture
def clustered(run: Made) -> Iterator[Made]:
    """The run, whose table has clusters for the time of a test."""
    table = run.image / "tables" / "cells"
    order = zarr.open_group(str(table / "obs"), mode="r").attrs["column-order"]
    add_clusters(table, NAMES, run.codes, run.places)
    yield run
    group = zarr.open_group(str(table), mode="r+", use_consolidated=False)
    group["obs"].attrs["column-order"] = order
    for path in ("obs/leiden", "obsm/X_umap", "uns/cytopave_atlas"):
        del group[path]


def section(page: Element, key: str) -> Element:
    (found,) = (s for s in page.iter("section") if s.get("id") == key)
    return found


def text_of(element: Element) -> str:
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


def rows_of(element: Element) -> list[dict[str, str]]:
    head = [text_of(cell) for cell in element.iter("th")]
    body = [[text_of(cell) for cell in row.iter("td")] for row in element.iter("tr")]
    return [dict(zip(head, cells, strict=True)) for cells in body if cells]


def counted(chart: Element) -> int:
    """Objects in all bars of a histogram, by what the bars say."""
    says = [title.text or "" for rect in chart.iter("rect") for title in rect.iter("title")]
    return sum(int(re.findall(r": (\d+) objects$", text)[0]) for text in says)


def picture(element: Element) -> np.ndarray:
    source = element.get("src") or element.get("href") or ""
    with Pillow.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as opened:
        return np.asarray(opened)


def test_every_section_is_there_and_reached_by_a_link(run: Made, tmp_path: Path) -> None:
    page = run.page(tmp_path / "new" / "folder")
    keys = [s.get("id") for s in page.iter("section")]
    assert keys == ["result", "objects", "seams", "stages", "provenance"]
    assert [a.get("href") for a in page.iter("a")] == [f"#{key}" for key in keys]
    ids = [e.get("id") for e in page.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    # Every chart says what it shows, also to those who cannot see it.
    for chart in page.iter("svg"):
        title, about = chart.find("title"), chart.find("desc")
        assert title is not None
        assert about is not None
        assert title.text
        assert about.text
        assert chart.get("aria-labelledby") == f"{title.get('id')} {about.get('id')}"
    assert all(image.get("alt") for image in page.iter("img"))


def test_distributions_are_those_of_the_table(run: Made, tmp_path: Path) -> None:
    part = section(run.page(tmp_path), "objects")
    table = open_table(run.image, "cells").read()
    charts = list(part.iter("svg"))
    titles = [text_of(h) for h in part.iter("h3")]
    assert titles == [
        "Area",
        "Diameter of a disk of that area",
        "Eccentricity (0 a circle, 1 a line)",
        "Solidity (1 convex)",
        "Mean intensity of DAPI",
        "Mean intensity of p53 <nuclear>",
    ]
    assert [counted(chart) for chart in charts] == len(titles) * [run.n]
    rows = {row["measure"]: row for row in rows_of(part)}
    assert {row["objects"] for row in rows.values()} == {str(run.n)}
    area = rows["Area (µm²)"]
    assert float(area["least"]) == pytest.approx(table["area"].min(), rel=1e-3)
    middle = np.quantile(table["area"], 0.5, method="inverted_cdf")
    assert float(area["median"]) == pytest.approx(middle, rel=1e-3)
    mean = rows["Mean intensity of DAPI"]
    assert float(mean["greatest"].replace(",", "")) == pytest.approx(
        table["DAPI_mean"].max(), rel=1e-3
    )
    labels = [text_of(t) for t in charts[0].iter("text") if t.get("class") == "label"]
    assert labels == ["Area (µm²)", "objects"]


def test_clusters_sizes_map_and_colours(clustered: Made, tmp_path: Path) -> None:
    run = clustered
    page = run.page(tmp_path)
    part = section(page, "clusters")
    sizes = {name: int((run.codes == i).sum()) for i, name in enumerate(NAMES)}
    left_out = int((run.codes < 0).sum())
    scatter, bars = part.iter("svg")
    says = [title.text or "" for rect in bars.iter("rect") for title in rect.iter("title")]
    found = {text.partition(":")[0]: int(text.split()[1]) for text in says}
    assert found == {**sizes, "none": left_out}
    assert sum(found.values()) == run.n
    listed = list(found.values())[:-1]
    assert listed == sorted(listed, reverse=True)
    rows = {row["cluster"]: row for row in rows_of(part)}
    area = open_table(run.image, "cells").read()["area"]
    for i, name in enumerate(NAMES):
        assert int(rows[name]["objects"]) == sizes[name]
        assert float(rows[name]["area (µm²)"]) == pytest.approx(
            area[run.codes == i].mean(), rel=1e-2
        )
    dots = [circle.get("fill") for circle in scatter.iter("circle")]
    assert len(dots) == run.n - left_out
    largest = sorted(sizes, key=lambda name: (-sizes[name], int(name)))
    for name, colour in zip(largest, CLASSES, strict=False):
        assert dots.count(colour) == sizes[name]
    assert dots.count(OTHERS) == sum(sizes[name] for name in largest[len(CLASSES) :])
    names = [text_of(t) for t in scatter.iter("text") if t.get("class") == "class"]
    assert names == largest[: len(CLASSES)]
    assert "13 clusters" in text_of(part)
    assert f"{left_out} objects were left out" in text_of(part)
    # On the image, each object's outline has its cluster's colour.
    with Pillow.open(tmp_path / "clusters.png") as opened:
        drawn = np.asarray(opened)
    labels = labels_of(run.image)
    colour_of = {name: CLASSES[i] for i, name in enumerate(largest[: len(CLASSES)])}
    for row in range(0, run.n, 11):
        y, x = np.argwhere(labels == row + 1)[0]  # the first pixel is on the outline
        name = NAMES[run.codes[row]] if run.codes[row] >= 0 else ""
        assert tuple(drawn[y, x]) == rgb(colour_of.get(name, OTHERS))


def test_a_map_of_many_objects_is_one_picture(
    clustered: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show_classes, "POINTS", 10)
    scatter = next(section(clustered.page(tmp_path), "clusters").iter("svg"))
    assert not list(scatter.iter("circle"))
    (image,) = scatter.iter("image")
    drawn = picture(image)
    assert drawn.shape == (show_classes.GRID, show_classes.GRID, 4)
    seen = drawn[drawn[..., 3] > 0]
    there = np.isfinite(clustered.places).all(axis=1).sum()
    assert 0.8 * there < len(seen) <= there
    assert {tuple(c) for c in seen[:, :3].tolist()} <= {rgb(c) for c in (*CLASSES, OTHERS)}
    # Upwards is up: the highest object is in the highest bin.
    top = int(np.nanargmax(clustered.places[:, 1]))
    y, x = np.argwhere(drawn[..., 3] > 0)[0]
    low, high = np.nanmin(clustered.places[:, 0]), np.nanmax(clustered.places[:, 0])
    share = (clustered.places[top, 0] - low) / (high - low)
    assert x == pytest.approx((0.03 + share) / 1.06 * show_classes.GRID, abs=1.5)
    assert y < 0.05 * show_classes.GRID


def test_tiles_that_failed_come_first_with_place_reason_and_command(
    run: Made, tmp_path: Path
) -> None:
    gone = Missing(tile=4, time=0, start=(150, 150), stop=(300, 300), why="ValueError: no <light>")
    again = "cytopave segment scan.zarr --allow-failed 1 --overwrite"
    made = run.report.model_copy(update={"missing": [gone], "retry": again})
    page = run.page(tmp_path, made)
    part = next(page.iter("section"))
    assert (part.get("id"), part.get("class")) == ("missing", "warning")
    assert rows_of(part) == [
        {"tile": "4", "time": "0", "pixels": "150:300, 150:300", "why": "ValueError: no <light>"}
    ]
    assert [pre.text for pre in part.iter("pre")] == [again]
    assert "1 of 9 tiles failed" in text_of(part)
    with Pillow.open(tmp_path / "seams.png") as opened:
        drawn = np.asarray(opened)
    for y, x in ((150, 150), (150, 299), (299, 150), (200, 200), (225, 225)):
        assert tuple(drawn[y, x]) == (255, 150, 60)
    assert tuple(drawn[140, 200]) != (255, 150, 60)


def test_stages_seams_and_provenance(run: Made, tmp_path: Path) -> None:
    page = run.page(tmp_path)
    stages = section(page, "stages")
    assert rows_of(stages)[1] == {
        "stage": "segment", "seconds": "2.0", "tasks": "3", "done": "9 tiles", "per second": "4.5"
    }  # fmt: skip
    assert "2.5 s in all" in text_of(stages)
    assert "2 tiles were finished by an earlier attempt" in text_of(stages)
    seams = section(page, "seams")
    (row,) = rows_of(seams)
    assert (row["objects at seams"], row["end there"]) == ("40", "3")
    told = text_of(section(page, "provenance"))
    table = open_table(run.image, "cells").made
    for value in (run.report.digest, run.provenance["fingerprint"], table["fingerprint"],
                  "threshold=900", "numpy"):  # fmt: skip
        assert value in told
    overview, _ = section(page, "result").iter("img")
    assert picture(overview).shape == (420, 400, 3)
    # The scale bar: 50 µm of 400 pixels of 0.5 µm.
    bar = next(e for e in page.iter("div") if e.get("class") == "scale")
    assert (bar.get("style"), text_of(bar)) == ("width: 25.0%", "50 µm")


def test_without_a_table_the_page_says_how_to_get_one(run: Made, tmp_path: Path) -> None:
    tables = run.image / "tables"
    tables.rename(run.image / "aside")
    try:
        part = section(run.page(tmp_path), "objects")
        with pytest.raises(OutputError, match="has no table 'cells'"):
            run.page(tmp_path, table="cells")
    finally:
        (run.image / "aside").rename(tables)
    assert "none was made" in text_of(part)
    (command,) = (pre.text or "" for pre in part.iter("pre"))
    assert command.startswith(f"cytopave measure {run.image} --labels ")


def test_a_table_of_other_labels_is_not_shown(
    run: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cytopave.engine.tables.read.label_fingerprint", lambda *_: "of something else"
    )
    part = section(run.page(tmp_path), "objects")
    assert "they have changed since it was made" in text_of(part)
    assert not list(part.iter("svg"))
    with pytest.raises(StaleTableError, match="they have changed"):
        run.page(tmp_path, table="cells")


def test_a_column_that_holds_no_clusters_is_refused(clustered: Made, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no column 'area' of categories: .* are leiden"):
        clustered.page(tmp_path, classes="area")
    part = section(clustered.page(tmp_path, classes="leiden"), "clusters")
    assert "column 'leiden'" in text_of(part)


def test_a_time_series_of_stacks(tmp_path: Path) -> None:
    """One row for each time point of an id; the pictures are of the first one's middle plane."""
    truth = worlds.disks((13, 60, 70), radius=5, pitch=15)
    later = np.where(np.arange(70) < 35, truth, 0)
    image = stores.ome_image(
        tmp_path / "scan.zarr", (np.stack([truth, later]) > 0).astype(np.uint16) * 500,
        axes="tzyx", chunks=(1, 13, 30, 30), scale=(1, 2, 0.5, 0.5),
    )  # fmt: skip
    made, provenance = made_report(
        image, segmenter=Threshold(threshold=100), tiling=Tiling(tile=(13, 40, 40), halo=12)
    )
    table = open_table(image, "cells")
    n = len(table)
    codes = np.arange(n) % 2
    add_clusters(image / "tables" / "cells", ["a", "b"], codes, np.zeros((n, 2), np.float32))
    files = write_report(made, provenance, tmp_path / "r", image=str(image))
    page = ElementTree.fromstring(Path(files["page"]).read_text(encoding="utf-8"))
    part = section(page, "objects")
    assert [counted(chart) for chart in part.iter("svg")] == 3 * [n]
    assert [row["measure"] for row in rows_of(part)] == [
        "Volume (µm³)", "Diameter of a ball of that volume (µm)", "Mean intensity"
    ]  # fmt: skip
    assert "Of the 13 planes the middle one is shown." in text_of(section(page, "result"))
    assert "Of the 2 time points the first is shown." in text_of(section(page, "result"))
    with Pillow.open(files["clusters"]) as opened:
        drawn = np.asarray(opened)
    first = labels_of(image)[0, 6]
    rows = table.read(columns=["label", "time"])
    assert set(rows["time"].tolist()) == {0, 1}
    assert len(np.unique(first)) > 5
    for row in np.flatnonzero((rows["time"] == 0) & np.isin(rows["label"], first)):
        y, x = np.argwhere(first == rows["label"][row])[0]
        rank = int(np.argsort(-np.bincount(codes), kind="stable").tolist().index(codes[row]))
        assert tuple(drawn[y, x]) == rgb(CLASSES[rank])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_browser_draws_it_in_light_and_dark(clustered: Made, tmp_path: Path, scheme: str) -> None:
    clustered.page(tmp_path)
    done = subprocess.run(
        [
            CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path}/profile", "--window-size=1000,8000",
            f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}",
            "--enable-logging=stderr", f"--screenshot={tmp_path}/page.png",
            (tmp_path / "report.html").as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    with Pillow.open(tmp_path / "page.png") as opened:
        seen = np.asarray(opened.convert("RGB"))
    assert tuple(seen[2, 2]) == (rgb("#14191f") if scheme == "dark" else rgb("#ffffff"))
    # Bars of the largest cluster, and of the histograms, are where somebody can see them.
    for colour in (CLASSES[0], "#6ea8e0" if scheme == "dark" else "#3b76b5"):
        assert (seen == rgb(colour)).all(axis=2).sum() > 500
