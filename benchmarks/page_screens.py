"""The pictures of the report page in docs/images, taken in headless Chromium.

    python benchmarks/page_screens.py STORE NAME OUT

STORE holds labels NAME, their table and its clusters: what `cytopave demo` leaves, and then

    cytopave atlas STORE/tables/NAME --profile intensities --set pca.n_comps=4

Needs Chromium (Debian's `chromium`). A page of one section at a time is opened, in light or dark.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from cytopave.deployments.cli.app import run

BYTES = 300_000
WIDTH, HEIGHT = 1180, 2400
SHOTS = (
    ("report-top", ("result",), False),
    ("report-objects", ("objects",), False),
    ("report-clusters", ("clusters",), False),
    ("report-dark", ("seams", "stages"), True),
)


def main(store: str, name: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if run(["report", store, "--name", name, "--out", folder]):
            raise SystemExit("there is no report")
        page = Path(folder, "report.html").read_text(encoding="utf-8")
        for shot, sections, dark in SHOTS:
            file = Path(folder, f"{shot}.html")
            file.write_text(only(page, sections, top=shot == "report-top"), encoding="utf-8")
            picture = taken(file, dark=dark)
            small = Pillow.fromarray(picture).quantize(256, Pillow.Quantize.MEDIANCUT)
            small.save(out / f"{shot}.png", optimize=True)
            size = (out / f"{shot}.png").stat().st_size
            assert size < BYTES, f"{shot}.png has {size} bytes"


def only(page: str, sections: tuple[str, ...], *, top: bool) -> str:
    """The page with some of its sections."""
    for key in sections:
        assert f'<section id="{key}"' in page, f"the page has no section {key}"
    kept = "".join(f":not(#{key})" for key in sections)
    hidden = f"section{kept}{'' if top else ', header'} {{ display: none }}"
    return page.replace("</head>", f"<style>{hidden}</style></head>")


def taken(file: Path, *, dark: bool) -> np.ndarray:
    """A picture of a page, without what is empty below it."""
    picture = file.with_suffix(".png")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    subprocess.run(
        [
            shutil.which("chromium") or "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            scheme,
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={picture}",
            file.as_uri(),
        ],
        check=True,
        capture_output=True,
    )
    pixels = np.asarray(Pillow.open(picture).convert("RGB"))
    filled = np.flatnonzero((pixels != pixels[-1, 0]).any(axis=(1, 2)))
    return pixels[: filled[-1] + 30]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
