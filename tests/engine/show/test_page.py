"""The report page: one file that needs nothing else."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from PIL import Image as Pillow

from cytopave.engine.show.page import Histogram, Page, Picture, Table


def test_the_page_holds_everything_and_fetches_nothing() -> None:
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    page = Page(
        title="<cells> & more",
        facts={"image": "a<b>.zarr"},
        provenance={"note": "</pre><script>alert(1)</script>"},
        pictures=[Picture("Outlines", "as they are", pixels)],
        tables=[Table("Stages", [{"stage": "plan", "seconds": 1.5}]), Table("Nothing", [])],
    ).html()
    assert "&lt;cells&gt; &amp; more" in page
    assert "a&lt;b&gt;.zarr" in page
    assert "<script" not in page
    assert '<td class="number">1.5</td>' in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    (encoded,) = re.findall(r"data:image/png;base64,([^\"]+)", page)
    with Pillow.open(io.BytesIO(base64.b64decode(encoded))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), pixels)


def test_a_histogram_counts_every_value_once() -> None:
    values = np.array([0, 0, 0, 1, 2, 4.0])
    histogram = Histogram.of("area", values, bars=4)
    assert histogram.heights == [1.0, 0.3333, 0.3333, 0.3333]
    assert (histogram.low, histogram.high, histogram.median) == (0.0, 4.0, 0.5)
    assert len(Histogram.of("one", np.array([3.0])).heights) == 40
