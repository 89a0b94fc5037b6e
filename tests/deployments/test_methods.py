from __future__ import annotations

import re
from typing import Any

import pytest

from cytopave.deployments.cli.calibrate import command_line
from cytopave.deployments.cli.options import Request
from cytopave.engine.errors import PlanError, SegmenterError, UserError
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.segmenters import Cellpose, Custom, Threshold, TorchNetwork
from cytopave.engine.tiling import Tiling


def segmenter(*entries: str, **options: Any) -> Any:
    return Request(**options, set=entries).parameters()["segmenter"]


def test_the_method_is_cellpose_unless_a_function_is_given() -> None:
    assert segmenter(model="nuclei-tiny", diameter=20.0) == Cellpose(
        model="nuclei-tiny", diameter=20.0
    )
    assert segmenter(function="a.b:f", diameter=9.0) == Custom(
        function="a.b:f", kwargs={}, diameter=9.0
    )
    assert segmenter(segmenter="threshold") == Threshold()
    network = ("network=a.b:build", "labels=a:f", "kwargs.depth=2", "scale=2")
    assert segmenter(*network, segmenter="torch", diameter=9.0) == TorchNetwork(
        network="a.b:build", labels="a:f", kwargs={"depth": 2}, scale=2, diameter=9.0
    )


def test_values_are_json_or_text() -> None:
    assert segmenter(
        "flow_threshold=0", "percentiles=[2, 98]", "device=cpu", "use_bfloat16=false"
    ) == Cellpose(flow_threshold=0, percentiles=(2, 98), device="cpu", use_bfloat16=False)
    assert segmenter('model="a=b"').model == "a=b"
    # Text that happens to be JSON, where only text will do.
    assert segmenter("model=2024").model == "2024"
    assert segmenter("version=1.0", function="m:f").version == "1.0"


def test_entries_of_a_table_are_set_one_by_one() -> None:
    made = segmenter("kwargs.sigma=2", 'kwargs.mode="wrap"', "kwargs.deep.er=[1]", function="m:f")
    assert made.kwargs == {"sigma": 2, "mode": "wrap", "deep": {"er": [1]}}
    assert segmenter('kwargs={"a": 1}', function="m:f").kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("entries", "options", "says"),
    [
        (("sigma=1",), {}, "the segmenter 'cellpose' has no option 'sigma' (--set sigma=1): its"),
        (("network={}",), {}, "has no option 'network'"),
        (("kind=threshold",), {}, "has no option 'kind'"),
        (("nonsense",), {}, "--set nonsense is not understood: write key=value"),
        (("min_size=-1",), {}, "cannot have min_size=-1: Input should be greater than or equal"),
        (("percentiles=[99, 1]",), {}, "percentiles must ascend"),
        (("threshold=[1]",), {"segmenter": "threshold"}, "cannot have threshold=[1]"),
        (("kwargs=1", "kwargs.a=2"), {"function": "m:f"}, "kwargs is set to 1"),
        ((), {"function": "no colon"}, "write package.module:name"),
        ((), {"segmenter": "threshold", "function": "m:f"}, "--function does not apply"),
        ((), {"segmenter": "threshold", "diameter": 3.0}, "--diameter does not apply"),
        ((), {"segmenter": "custom"}, "needs --function"),
        (("network=a:b",), {"segmenter": "torch"}, "needs two functions: --set network="),
        (
            ("network=a:b", "labels=a"),
            {"segmenter": "torch"},
            "--set labels=a is not understood: write package.module:name",
        ),
        ((), {"segmenter": "stardist"}, "needs --model, the folder of its network"),
    ],
)
def test_what_does_not_fit_is_named(
    entries: tuple[str, ...], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SegmenterError, match=re.escape(says)):
        segmenter(*entries, **options)


@pytest.mark.parametrize(
    ("tile", "halo", "expected"),
    [
        ("auto", "auto", Tiling()),
        ("2048,2048", "64", Tiling(tile=(2048, 2048), halo=64)),
        ("512", "8,64,64", Tiling(tile=(512, 512), halo=(8, 64, 64))),
        ("16, 512, 256", "0", Tiling(tile=(16, 512, 256), halo=0)),
    ],
)
def test_lengths(tile: str, halo: str, expected: Tiling) -> None:
    assert Request(tile=tile, halo=halo).parameters()["tiling"] == expected


@pytest.mark.parametrize(
    "options",
    [
        *({"tile": tile} for tile in ("0", "a", "1,2,3,4", "")),
        *({"halo": halo} for halo in ("-1", "1.5")),
        *({name: -1.0} for name in ("workers", "gpu_memory_gb", "diameter")),
    ],
)
def test_lengths_and_numbers_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="--"):
        Request(**options).parameters()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("0,1", ["0", "1"]), ("DAPI", ["DAPI"]), ('["a,b", 2]', ["a,b", 2])],
)
def test_channels(text: str | None, expected: list[int | str] | None) -> None:
    assert Request(channels=text).parameters()["channels"] == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"mask": "otsu"}, Mask(threshold="otsu")),
        (
            {"mask": "500", "mask_level": 0, "mask_dark": True},
            Mask(threshold=500, level=0, dark=True),
        ),
        ({"mask": "tissue.zarr", "clip": True}, Mask(image="tissue.zarr", clip=True)),
    ],
)
def test_masks(options: dict[str, Any], expected: Mask | None) -> None:
    assert Request(**options).parameters()["mask"] == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clip": True}, "say more of a --mask"),
        ({"mask": "tissue.zarr", "mask_dark": True}, "--mask tissue.zarr: dark belongs to a"),
        ({"mask": "otsu", "mask_level": -1}, "--mask otsu: Input should be greater"),
    ],
)
def test_masks_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Request(**options).parameters()


def test_channels_that_are_no_list() -> None:
    with pytest.raises(UserError, match="is not a JSON list"):
        Request(channels="[a").parameters()


def test_the_command_that_calibration_recommends() -> None:
    request = Request(
        name="my cells",
        segmenter="watershed",
        set=("depth=2", "sigma=0"),
        tile="512",
        halo="auto",
        clip=True,
        mask="otsu",
        workers=3,
    )
    assert command_line("scan.zarr", request, tile=(512, 512), halo=(24, 24)) == (
        "cytopave segment scan.zarr --name 'my cells' --segmenter watershed --set depth=2 "
        "--set sigma=0 --mask otsu --clip --workers 3 --tile 512,512 --halo 24,24"
    )
