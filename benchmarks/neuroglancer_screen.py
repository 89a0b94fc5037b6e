"""The picture of neuroglancer in docs/images: its real client, in headless Chromium, on a store.

    npx http-server --cors -p 8000 FOLDER &
    python benchmarks/neuroglancer_screen.py http://localhost:8000/nuclei.zarr nuclei OUT.png

Needs Chromium, Node, and `pip install neuroglancer` (2.41) in the Python that runs it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import neuroglancer

SHADER = """#uicontrol invlerp normalized(range=[0, 65535])
void main() { emitGrayscale(normalized()); }"""


def main(store: str, name: str, out: Path) -> None:
    viewer = neuroglancer.Viewer()
    with viewer.txn() as state:
        state.layers["image"] = neuroglancer.ImageLayer(source=f"{store}/|zarr:", shader=SHADER)
        labels = f"{store}/labels/{name}/|zarr:"
        state.layers[name] = neuroglancer.SegmentationLayer(source=labels)
        state.layout, state.showAxisLines = "xy", False
    shots: list[bytes] = []

    def take() -> None:
        # Answered once everything that is visible has been fetched and drawn.
        shots.append(viewer.screenshot(size=(1000, 700)).screenshot.image)

    with tempfile.TemporaryDirectory() as profile:
        browser = subprocess.Popen(
            [
                shutil.which("chromium") or "chromium",
                "--headless=new",
                "--no-sandbox",
                "--use-angle=swiftshader",
                "--enable-unsafe-swiftshader",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                viewer.get_viewer_url(),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            waiting = threading.Thread(target=take, daemon=True)
            waiting.start()
            waiting.join(90)
        finally:
            browser.kill()
            browser.wait()
    if not shots:
        sys.exit("neuroglancer did not show everything within 90 s")
    out.write_bytes(shots[0])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
