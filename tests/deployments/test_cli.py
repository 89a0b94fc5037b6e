"""The program as its users meet it: streams, exit statuses, and what is left on disk."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
import stores
import zarr
from PIL import Image as Pillow
from plates import write_plate

from cytopave.engine.merge import Merge
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.planning.budget import host_budget
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.report import Report, Stage
from cytopave.engine.seams import SeamReport
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling
from cytopave.tasks.publish import plan_facts

if TYPE_CHECKING:
    from commands import Command

PROGRAM = str(Path(sys.executable).parent / "cytopave")


def program(*tokens: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *map(str, tokens)], capture_output=True, text=True, timeout=300, check=False
    )


def everything(folder: Path) -> dict[str, int | None]:
    """All files and folders, with the time of each file; what Python compiles does not count."""
    found = (p for p in folder.rglob("*") if "__pycache__" not in str(p))
    return {str(p): p.stat().st_mtime_ns if p.is_file() else None for p in found}


THRESHOLD = ("--segmenter", "threshold")


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (("absent.zarr", *THRESHOLD), "there is no image at"),
        (("notes.txt", *THRESHOLD), "is a file, not a zarr image"),
        (("image.zarr", *THRESHOLD, "--level", "5"), "has no level 5"),
        (("image.zarr", *THRESHOLD, "--channels", "DAPI"), "has no channel axis"),
        (("image.zarr", *THRESHOLD, "--axes", "zy"), "leave the axes out"),
        (("image.zarr", *THRESHOLD, "--name", "taken"), "'taken' is already in"),
        (("image.zarr", *THRESHOLD, "--name", "a/b"), "cannot name a label image"),
        (("image.zarr", *THRESHOLD, "--output", "notes.txt"), "is a file: give a folder"),
        (("image.zarr", *THRESHOLD, "--output", "/proc/nowhere"), "labels cannot be written to"),
        (("image.zarr", *THRESHOLD, "--tile", "32", "--halo", "40"), "does not fit a tile of 32"),
        (("large.zarr", *THRESHOLD, "--tile", "900000"), "take a smaller tile"),
        (("image.zarr", *THRESHOLD, "--workers", "0"), "--workers 0 must be a number larger"),
        (("image.zarr", "--diameter", "inf"), "--diameter inf must be a number larger than 0"),
        (("image.zarr", *THRESHOLD, "--cluster", "nvlink"), "needs an NVIDIA GPU"),
        (("image.zarr", *THRESHOLD, "--model", "cyto"), "--model does not apply"),
        (("image.zarr", "--segmenter", "stardist"), "the segmenter 'stardist' needs --model"),
        (("image.zarr", "--segmenter", "custom"), "needs --function"),
        (("image.zarr", "--model", "nobodys"), "knows no model 'nobodys'"),
        (("image.zarr", "--model", "no/file.pt"), "there is no model file 'no/file.pt'"),
        (("image.zarr", "--function", "nowhere:f"), "there is no module 'nowhere'"),
        (("image.zarr", "--function", "mine:absent"), "there is no 'absent' in the module 'mine'"),
        (("image.zarr", "--function", "mine:floats", "--set", "kwargs.a=1"), "cannot be called"),
        (("image.zarr", "--segmenter", "trheshold"), 'Choose from: "cellpose", "threshold"'),
        (("image.zarr", *THRESHOLD, "--tiles", "32"), "Unknown option: --tiles"),
        ((), "requires an argument"),
    ],
)
@pytest.mark.parametrize("verb", ["segment", "plan"])
def test_bad_input_is_one_line_and_status_2(
    command: Command,
    image: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    tokens: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (image.parent / "notes.txt").touch()
    (image.parent / "mine.py").write_text("def floats(tile): return tile * 1.0\n")
    stores.group(image / "labels", {"ome": {"version": "0.5", "labels": ["taken"]}})
    stores.group(image / "labels" / "taken", {})
    zarr.create_array(
        str(image.parent / "large.zarr"), shape=(10**6, 10**6), chunks=(1000, 1000), dtype="u2"
    )
    before = everything(image.parent)
    ended = command(verb, *tokens)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert everything(image.parent) == before


def test_bad_input_ends_before_anything_heavy_is_imported(image: Path) -> None:
    lines = (
        "import sys",
        "from cytopave.deployments.cli.app import run",
        f"status = run(['segment', {str(image)!r}, '--model', 'nobodys'])",
        "print(status, sorted({'prefect', 'distributed', 'torch', 'cellpose'} & set(sys.modules)))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 []\n"
    assert done.stderr.count("\n") == 1


def test_the_program_ends_with_the_status(folder: Path) -> None:
    done = program("segment", "absent.zarr")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"cytopave: error: there is no image at {folder}/absent.zarr: no such file or folder\n"
    )


@pytest.mark.parametrize(
    "verb",
    [
        (),
        *(
            (v,)
            for v in ("probe", "plan", "segment", "sweep", "measure", "merge", "report", "demo")
        ),
    ],
)
def test_help(command: Command, verb: tuple[str, ...]) -> None:
    ended = command(*verb, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert f"Usage: cytopave {verb[0] if verb else 'COMMAND'}" in ended.out


def test_verbose_shows_where_an_error_comes_from(command: Command) -> None:
    ended = command("segment", "absent.zarr", *THRESHOLD, "--verbose")
    assert (ended.status, ended.out) == (2, "")
    assert "Traceback" in ended.err
    assert "there is no image at" in ended.err


def test_an_interrupt_that_a_library_made_an_error_of_its_own_is_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cytopave.deployments.cli import app

    def interrupted(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ValueError("something else") from error

    received: list[int] = []
    monkeypatch.setattr(app, "_received", received)
    monkeypatch.setattr("cytopave.engine.planning.planner.open_image", interrupted)
    before = signal.signal(signal.SIGINT, app._interrupt)
    try:
        ended = command("segment", "absent.zarr", *THRESHOLD)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.status, received) == (130, [130])
    assert ended.err.splitlines()[-1].endswith("the same command resumes")


def test_what_nobody_foresaw_is_shown_whole(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cytopave.engine.planning.planner.open_image", lambda *_, **__: 1 // 0)
    ended = command("segment", "absent.zarr", *THRESHOLD)
    assert (ended.status, ended.out) == (1, "")
    assert "ZeroDivisionError" in ended.err


def test_a_bad_setting_is_a_users_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYTOPAVE_RETRIES", "many")
    ended = command("probe")
    assert (ended.status, ended.out) == (2, "")
    assert "CYTOPAVE_RETRIES='many'" in ended.err


def test_probe_without_a_gpu_says_what_would_be_assumed(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = command("probe")
    assert text.status == 0
    assert "No GPU is visible here" in text.out
    assert "8 GiB are assumed" in text.out
    facts = json.loads(command("probe", "--json", "--gpu-memory-gb", "24").out)
    assert facts["gpu"]["visible"] is False
    assert facts["gpu"]["budget_bytes"] == int(24 * 2**30 * 0.8)
    assert facts["cpu_workers"] >= 1
    assert 0 < facts["memory"]["available"] <= facts["memory"]["total"]
    assert facts["packages"]["zarr"] == zarr.__version__


def test_plan_says_what_a_run_would_do_and_leaves_nothing(command: Command, image: Path) -> None:
    before = everything(image.parent)
    tokens = ("plan", image, *THRESHOLD, "--tile", "100,200", "--halo", "10", "--workers", "2")
    facts = json.loads(command(*tokens, "--json").out)
    assert facts["tiles"] == 15
    assert facts["grid"] == [5, 3]
    assert facts["halo"] == [10, 10]
    assert facts["batches"] * facts["tiles_per_batch"] >= 15
    assert facts["memory"]["need"] == 120 * 220 * (2 + 4 + 8 + 4)
    assert facts["memory"]["budget"] > facts["memory"]["need"]
    assert facts["segmenter"]["threshold"] > 100
    assert facts["chunks"]["chunks"] == 25
    # At worst each tile reads all that its window touches: 3 rows of up to 4 chunks.
    assert 25 <= facts["chunks"]["decodes"] <= 15 * 3 * 4
    assert facts["finished_tiles"] == 0
    # Cores, and the zones that tiles share: four sides and four corners.
    zones = 2 * 20 * 220 + 2 * 120 * 20 + 4 * 20 * 20
    strips = 100 * 200 - 80 * 180  # whose pixels, of 16 bits, are kept to be measured
    assert facts["scratch"]["at_most"] == 15 * (4 * (100 * 200 + zones) + 2 * strips)
    without = json.loads(command(*tokens, "--no-measure", "--json").out)
    assert without["scratch"]["at_most"] == 15 * 4 * (100 * 200 + zones)
    text = command(*tokens)
    assert (text.status, text.err) == (0, "")
    assert "15 (5 x 3) of 100 x 200 pixels, halo 10 x 10" in text.out
    assert everything(image.parent) == before


@pytest.fixture
def api(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs use the API of the tests, as with one that is set for good."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)


@pytest.mark.usefixtures("api")
def test_segment_and_report(command: Command, image: Path, truth: np.ndarray) -> None:
    done = program("segment", image, *THRESHOLD, "--set", "threshold=500", "--tile", "200",
                   "--halo", "20", "--workers", "2", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(
        re.fullmatch(r"(tiles|scan seams|write labels|measure cells): \d+ of \d+", n) for n in lines
    )
    assert {"tiles: 9 of 9", "scan seams: 4 of 4", "write labels: 1 of 1"} <= set(lines)
    made = json.loads(done.stdout)
    assert made["n_objects"] == truth.max()
    assert made["labels_path"] == f"{image}/labels/cells"
    assert made["table_path"] == f"{image}/tables/cells"
    assert len(open_table(image, "cells")) == truth.max()
    found = open_labels(image, "cells").levels[0][:]
    np.testing.assert_array_equal(np.asarray(found) > 0, truth > 0)
    assert not list((image.parent / ".cytopave").glob("*")), "tile files are left"

    reports = [
        json.loads(command("report", place, "--json", "--out", "r").out)
        for place in (image, f"{image}/labels/cells")
    ]
    assert reports[0] == reports[1]
    assert reports[0]["segmenter"]["threshold"] == 500
    assert reports[0]["stages"] == [
        {**stage, "seconds": pytest.approx(stage["seconds"], abs=1e-3)}
        for stage in reports[0]["stages"]
    ]
    assert [s["name"] for s in reports[0]["stages"]] == [s["name"] for s in made["stages"]][:-1]
    assert reports[0]["seams"] == made["seams"]
    text = command("report", image, "--out", "r", "--tiles")
    assert (text.status, text.err) == (0, "")
    assert f"{truth.max()}, of which" in text.out
    with Pillow.open("r/overlay.png") as picture:
        assert picture.size == (430, 500)
    assert json.loads(Path("r/report.json").read_text())["n_objects"] == truth.max()
    assert Path("r/stages.csv").read_text().startswith("stage,seconds,tasks,done,per second\nplan,")

    # A copy is reported on by itself, and has its table.
    copy = image.with_name("copy.zarr")
    shutil.copytree(image, copy)
    text = command("report", copy, "--out", "c")
    assert (text.status, text.err) == (0, "")
    assert f" {copy}, level 0" in text.out
    exported = command("measure", copy, "--csv", "copy.csv")
    assert (exported.status, exported.err) == (0, "")
    assert f"objects, measured before  {truth.max()}" in exported.out
    # Pixels change, by what compresses to another size.
    zarr.open_array(str(image / "s0"))[:200, :200] = 0
    exported = command("measure", image, "--csv", "changed.csv")
    assert exported.status == 2
    assert f"describes the image {image} as before it changed" in exported.err
    text = command("report", image, "--out", "c")
    assert (text.status, "are not those that were segmented" in text.err) == (0, True)
    stores.ome_image(image.with_name("other.zarr"), np.zeros((40, 40), np.uint16))
    other = command("report", image, "--image", "other.zarr")
    assert (other.status, "name the image that they are of" in other.err) == (2, True)


def test_report_refuses_what_it_did_not_make(command: Command, image: Path) -> None:
    for place, says in (
        (image, "has no label image 'cells'"),
        ("absent.zarr", "there is nothing at"),
    ):
        ended = command("report", place)
        assert (ended.status, ended.out) == (2, "")
        assert says in ended.err
    plate = write_plate(image.parent / "plate.zarr", {"A/1": [np.zeros((64, 64), np.uint8)]})
    ended = command("report", plate)
    assert (ended.status, ended.out) == (2, "")
    assert "is a plate: name one of its images, such as" in ended.err
    stores.group(image / "labels", {"ome": {"version": "0.5", "labels": ["cells"]}})
    stores.ome_image(image / "labels" / "cells", np.zeros((500, 430), np.uint32))
    ended = command("report", image)
    assert (ended.status, ended.out) == (2, "")
    assert "was not made by cytopave" in ended.err
    assert not Path("report").exists()


def test_report_of_a_plain_array_whose_axes_were_given(command: Command, folder: Path) -> None:
    pixels = np.zeros((2, 40, 50), np.uint16)
    pixels[1, 10:20, 10:30] = 1000
    stores.plain_array(folder / "scan.zarr", pixels, chunks=(1, 40, 50))
    plan = make_plan(
        "scan.zarr",
        axes="cyx",
        channels=[1],
        segmenter=Threshold(threshold=500),
        tiling=Tiling(),
        merge=Merge(),
        name="cells",
        budget=host_budget(1),
        workers=1,
        batch_seconds=1,
    )
    plan.target.create(np.uint32)
    for block in plan.target.blocks():
        plan.target.writer().write(block, (pixels[1] > 0).astype(np.uint32)[block.box.slices])
    plan.target.writer().finish()
    made = Report(
        image=plan.image.url,
        labels_path=str(plan.target.published),
        n_objects=1,
        n_joined=0,
        n_suspects=0,
        n_tiles=1,
        n_reused=0,
        digest=plan.digest,
        stages=[Stage(name="plan", seconds=1.0)],
        seams=SeamReport(),
    )
    plan.target.publish(made.provenance(plan_facts(plan)))
    for place in ("scan.zarr", "scan.labels.zarr", "scan.labels.zarr/labels/cells"):
        ended = command("report", place, "--json", "--out", "r")
        assert (ended.status, ended.err) == (0, "")
        assert json.loads(ended.out)["labels_path"] == f"{folder}/scan.labels.zarr/labels/cells"
        assert "1 objects in scan.zarr" in Path("r/report.html").read_text()
        with Pillow.open("r/overlay.png") as picture:
            drawn = np.asarray(picture)
        # The outline is coloured; the object is white inside, the rest is black.
        assert (drawn[10, 10:30].max(axis=1) != drawn[10, 10:30].min(axis=1)).all()
        assert (drawn[11:19, 11:29] == 255).all()
        assert drawn.sum(axis=(1, 2))[20:].max() == 0
    # A folder of that name above says nothing.
    Path("labels").mkdir()
    for name in ("scan.zarr", "scan.labels.zarr"):
        Path(name).rename(f"labels/{name}")
    assert command("report", "labels/scan.zarr").status == 0
    for name in ("scan.zarr", "scan.labels.zarr"):
        Path(f"labels/{name}").rename(name)
    Path("scan.zarr").rename("moved.zarr")
    ended = command("report", "scan.labels.zarr")
    assert (ended.status, ended.out) == (2, "")
    assert "there is no image at" in ended.err
    assert command("report", "scan.labels.zarr", "--image", "moved.zarr").status == 0


MINE = '''
import time
from pathlib import Path

from skimage.measure import label


def floats(tile):
    return tile * 1.0


def picky(tile):
    """Refuses the tile of the image's upper left corner."""
    if tile.shape == (220, 220) and Path("refuse").exists():
        raise ValueError("not this one")
    return label(tile > 500)


def slow(tile, folder):
    """Says in a file that it runs; from the fifth call on, it does not end until it may hurry."""
    number = 0
    while True:
        try:
            Path(folder, str(number)).touch(exist_ok=False)
            break
        except FileExistsError:
            number += 1
    while number >= 4 and not Path("hurry").exists():
        time.sleep(0.05)
    return label(tile > 500)
'''


@pytest.mark.usefixtures("api")
def test_a_function_of_this_folder_that_returns_no_labels(image: Path) -> None:
    Path("mine.py").write_text(MINE)
    done = program("segment", image, "--function", "mine:floats", "--tile", "200", "--workers", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cytopave: error: the function mine:floats, on tile ")
    assert "returned float64 values: labels must be integers" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("api")
def test_what_is_left_out_is_said_by_the_status_and_the_report(
    command: Command, image: Path
) -> None:
    Path("mine.py").write_text(MINE)
    Path("refuse").touch()
    tokens = ("segment", image, "--function", "mine:picky", "--tile", "200", "--halo", "20",
              "--workers", "1", "--merge", "touch")  # fmt: skip
    assert command(*tokens, "--allow-failed", "-1").err.endswith("must be 0 or more\n")
    done = program(*tokens, "--allow-failed", "1")
    assert done.returncode == 3, done.stderr
    assert "Tiles that failed and were left out" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "cytopave: incomplete: 1 of 9 tiles failed and are left out: tile 0 (pixels 0:200, 0:200)"
    )
    told = json.loads(command("report", image, "--json").out)
    assert [m["tile"] for m in told["missing"]] == [0]
    again = [*map(str, tokens), "--allow-failed", "1", "--overwrite"]
    assert told["retry"] == shlex.join(["cytopave", *again])
    Path("refuse").unlink()
    done = program(*again, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_reused"] == 8


@pytest.mark.usefixtures("api")
def test_sweep(command: Command, image: Path) -> None:
    ended = command("sweep", ".", *THRESHOLD, "--overwrite")
    assert (ended.status, ended.out) == (2, "")
    assert "leave --overwrite out" in ended.err
    tokens = ("sweep", ".", *THRESHOLD, "--tile", "200", "--halo", "20", "--settled-seconds", "0")
    told = json.loads(command(*tokens, "--dry-run", "--json").out)
    assert [(row["image"], row["action"]) for row in told["images"]] == [(str(image), "start")]
    done = program(*tokens, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"image\.zarr +new +made", done.stdout)
    assert stores.listed(image) == ["cells"]
    again = command(*tokens)
    assert re.search(r"image\.zarr +labelled +none", again.out)
    lost = command("sweep", "nowhere", *THRESHOLD)
    assert (lost.status, lost.out) == (2, "")
    assert "there is no folder" in lost.err


def finished_tiles() -> list[Path]:
    return list(Path(".cytopave").rglob("*.zip"))


def test_ctrl_c_leaves_no_process_and_the_same_command_resumes(
    image: Path, prefect_api: str
) -> None:
    Path("mine.py").write_text(MINE)
    Path("calls").mkdir()
    tokens = [PROGRAM, "segment", str(image), "--function", "mine:slow", "--workers", "2"]
    tokens += ["--tile", "100", "--halo", "10", "--set", "kwargs.folder=calls", "--json"]
    process = subprocess.Popen(
        tokens,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(list(Path("calls").iterdir())) < 6 or len(finished_tiles()) < 4:
        assert process.poll() is None
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    # As a terminal does: to every process of the command.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == (
        "cytopave: interrupted: finished tiles are kept, and the same command resumes"
    )
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(below, timeout=100)
    assert not alive

    assert len(finished_tiles()) == 4
    assert len(list(Path("calls").iterdir())) == 6
    Path("hurry").touch()
    # On the API of the tests: another one need not start for this, and it knows nothing either.
    environ = {**os.environ, "PREFECT_API_URL": prefect_api}
    done = subprocess.run(
        tokens, capture_output=True, text=True, timeout=300, check=True, env=environ
    )
    assert json.loads(done.stdout)["n_reused"] == 4
    assert len(list(Path("calls").iterdir())) == 6 + 25 - 4


def test_plan_chooses_a_halo_from_the_data(command: Command, image: Path) -> None:
    tokens = ("--segmenter", "watershed", "--calibrate", "--crop", 256)
    ended = command("plan", image, *tokens, "--json")
    assert ended.status == 0, ended.err
    facts = json.loads(ended.out)
    assert facts["invisible"]
    assert facts["trials"][-1]["changed"] == 0
    assert facts["command"].startswith(f"cytopave segment {image} --segmenter watershed --tile ")
    table = command("plan", image, *tokens)
    assert table.status == 0, table.err
    assert "the shortest of these that changes no object" in table.out
    assert facts["command"] in table.out
    assert not (image / "labels").exists()
    bad = command("plan", image, "--segmenter", "threshold", "--calibrate", "--crop", -1)
    assert bad.status == 2
    assert "--crop -1 must be a number larger than 0" in bad.err


def test_options_of_images_and_of_plates(command: Command, image: Path, folder: Path) -> None:
    plate = write_plate(folder / "plate.zarr", {"A/1": [np.zeros((64, 64), np.uint8)]})
    for tokens, says in (
        ((image, "--wells", "A1"), "--wells belongs to a plate"),
        ((plate, "--output", "elsewhere.zarr"), "--output does not apply to a plate"),
        ((plate, "--wells", "C7"), "has no well C7: its 1 wells are A/1"),
        ((plate, "--mask", "tissue.zarr"), "a plate has many: give a threshold"),
        ((image, "--mask", "nowhere.zarr"), "there is no image at"),
        ((image, "--channels", "DAPI"), "has no channel axis"),
    ):
        ended = command("segment", *tokens, "--segmenter", "threshold")
        assert ended.status == 2, ended.err
        assert says in ended.err
        assert ended.err.count("\n") == 1
