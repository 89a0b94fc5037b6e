"""The parts of the report page by themselves."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image as Pillow

from cytopave.engine.show.numbers import number, round_step, ticks, unit_of
from cytopave.engine.show.page import Card, Code, Page, Picture, Section, Table, scale_bar
from cytopave.engine.show.palette import CLASSES, OTHERS, rgb


def test_whatever_texts_say_they_stay_texts() -> None:
    odd = "</pre><script>alert(1)</script> & \"quotes\" 'too' {{ 1 + 1 }}"
    page = Page(
        odd,
        odd,
        [Card(odd, odd, odd)],
        [Section("a", odd, odd, facts={odd: odd}, tables=[Table(odd, [{odd: odd}]), Table("", [])],
                 code=[Code(odd, odd), Code(odd, odd, folded=True)])],
    ).html()  # fmt: skip
    found = ElementTree.fromstring(page)
    texts = [text.strip() for text in found.itertext() if text.strip()]
    assert texts.count(odd) == 18
    assert not list(found.iter("script"))


@pytest.mark.parametrize("sharp", [True, False])
def test_pictures_are_in_the_page(sharp: bool) -> None:
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[5:10, 5:20] = (250, 120, 30)
    shown = Picture("One", "", pixels, scale_bar(15, "µm"), sharp=sharp)
    page = Page("", sections=[Section("a", "A", pictures=[shown])])
    (image,) = ElementTree.fromstring(page.html()).iter("img")
    kind, _, content = (image.get("src") or "").partition(";base64,")
    assert kind == f"data:image/{'png' if sharp else 'jpeg'}"
    with Pillow.open(io.BytesIO(base64.b64decode(content))) as picture:
        found = np.asarray(picture).astype(int)
    np.testing.assert_allclose(found, pixels, atol=0 if sharp else 60)


def test_numbers_for_people() -> None:
    assert [number(v) for v in (0, 3, 1234567, 0.12345, 183.25, 2e7, 1e-5)] == [
        "0", "3", "1,234,567", "0.1235", "183.2", "2e+07", "1e-05"
    ]  # fmt: skip
    assert [number(v) for v in (float("nan"), float("inf"), -float("inf"))] == [
        "not a number", "+infinity", "-infinity"
    ]  # fmt: skip
    assert ticks(0, 97) == [0, 20, 40, 60, 80]
    assert ticks(-0.31, 0.3, 4) == pytest.approx([-0.2, 0, 0.2])
    assert [round_step(v, 5) for v in (1, 4.9, 500, 0.03)] == [0.2, 1, 100, 0.01]
    assert scale_bar(768, "µm") == (26.042, "200 µm")


def test_units() -> None:
    micro = "micrometer"
    assert [unit_of((micro,) * d, d) for d in (1, 2, 3)] == ["µm", "µm²", "µm³"]
    assert unit_of((None, None), 2) == "pixels"
    assert unit_of(("parsec",) * 2, 2) == "parsec²"
    assert unit_of(("nanometer", micro, micro), 3) == "nm µm µm"


# What people without red, green or blue cones see: matrices for linear RGB of the source that
# the palette names, severity 1.
_SEEN = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


@pytest.mark.parametrize("cones", _SEEN)
def test_colours_can_be_told_apart(cones: str) -> None:
    from skimage.color import deltaE_ciede2000, rgb2lab

    colours = np.array([rgb(c) for c in CLASSES]) / 255
    linear = np.where(colours > 0.04045, ((colours + 0.055) / 1.055) ** 2.4, colours / 12.92)
    seen = (linear @ np.array(_SEEN[cones]).T).clip(0, 1)
    srgb = np.where(seen > 0.0031308, 1.055 * seen ** (1 / 2.4) - 0.055, seen * 12.92)
    lab = rgb2lab(srgb)
    apart = deltaE_ciede2000(lab[:, None], lab[None])
    assert apart[~np.eye(len(lab), dtype=bool)].min() > 13


def test_colours_stand_out_from_light_and_dark_pages() -> None:
    def luminance(colour: str) -> float:
        values = np.array(rgb(colour)) / 255
        linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    for colour in (*CLASSES, OTHERS):
        assert 1.05 / (luminance(colour) + 0.05) > 1.85
        assert (luminance(colour) + 0.05) / (luminance("#14191f") + 0.05) > 2.4


@pytest.mark.parametrize("shape", [(16, 16, 3), (400, 300, 3)])
def test_a_picture_of_noise(shape: tuple[int, ...]) -> None:
    """Nothing compresses worse."""
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = Pillow.open(io.BytesIO(base64.b64decode(Picture("", "", noise).base64)))
    assert found.size == (shape[1], shape[0])
    assert abs(np.asarray(found, float) - noise).mean() < 25
