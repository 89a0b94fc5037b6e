from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import Custom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCE = """
import functools

limit = 3

def above(tile, *, value=0):
    tile[...] = tile > value
    return tile

class Tools:
    @staticmethod
    def above(tile):
        return tile

bound = functools.partial(above, value=1)
"""

type Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module that can be imported; a module written again is imported again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = set()

    def module(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        written.add(name)

    yield module
    for name in written:
        sys.modules.pop(name, None)


def resolved(function: str, **fields: Any) -> Custom:
    image: Any = None  # a function is resolved without looking at the image
    return Custom(function=function, **fields).resolve(image, channels=())


def test_the_function_gets_its_arguments(write: Write) -> None:
    write("labellers", SOURCE)
    tile = np.arange(6).reshape(2, 3)
    labels = resolved("labellers:above", kwargs={"value": 3}).load()(tile)
    assert labels.tolist() == [[0, 0, 0], [0, 1, 1]]


def test_a_function_that_writes_into_its_tile_does_not_change_ours(write: Write) -> None:
    write("labellers", SOURCE)
    tile = np.arange(6).reshape(2, 3)
    tile.flags.writeable = False
    function = resolved("labellers:above").load()
    np.testing.assert_array_equal(function(tile), function(tile))
    assert tile.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("function", ["labellers:Tools.above", "labellers:bound"])
def test_what_can_be_called_can_be_named(write: Write, function: str) -> None:
    write("labellers", SOURCE)
    segmenter = resolved(function)
    assert segmenter.load()(np.ones((2, 2), int)).shape == (2, 2)
    assert segmenter.source_sha256


@pytest.mark.parametrize(
    ("function", "kwargs", "message"),
    [
        ("no_such_module_here:f", {}, "there is no module 'no_such_module_here'"),
        ("labellers.deeper:f", {}, "there is no module 'labellers.deeper'"),
        ("labellers:nothing", {}, "no 'nothing' in the module 'labellers'"),
        ("labellers:limit", {}, "is a int and not a function"),
        ("labellers:above", {"limit": 1}, "f\\(tile, limit=1\\).*unexpected keyword"),
        ("needy:f", {}, "the module 'needy' itself needs 'absent_package'"),
        ("broken:f", {}, "the module 'broken' fails with ZeroDivisionError"),
        ("__main__:f", {}, "move the function into a module"),
    ],
)
def test_what_cannot_be_called_is_refused(
    write: Write, function: str, kwargs: dict[str, Any], message: str
) -> None:
    write("labellers", SOURCE)
    write("needy", "import absent_package")
    write("broken", "1 / 0")
    with pytest.raises(SegmenterError, match=message):
        resolved(function, kwargs=kwargs)


@pytest.mark.parametrize("name", ["", "module", "module:", ":f", "a b:f", "a:f()", "a/b.py:f"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Custom(function=name)


def test_arguments_must_be_json() -> None:
    with pytest.raises(ValidationError):
        Custom(function="a:b", kwargs={"x": object()})


def test_an_edited_function_has_another_digest(write: Write) -> None:
    write("labellers", SOURCE)
    before = resolved("labellers:above")
    assert resolved("labellers:above").digest() == before.digest()
    write("labellers", SOURCE.replace("tile > value", "tile >= value"))
    assert resolved("labellers:above").digest() != before.digest()
    with pytest.raises(SegmenterError, match="not the function that was planned with"):
        before.load()


def test_a_worker_that_imported_before_the_edit_says_so(write: Write, tmp_path: Path) -> None:
    write("labellers", SOURCE)
    resolved("labellers:above").load()
    (tmp_path / "labellers.py").write_text(SOURCE.replace("tile > value", "tile >= value"))
    planned_elsewhere = resolved("labellers:above")
    with pytest.raises(SegmenterError, match="restart workers"):
        planned_elsewhere.load()


def test_the_file_that_defines_the_function_counts(write: Write) -> None:
    write("labellers", SOURCE)
    write("front", "from labellers import above")
    assert resolved("front:above").source_sha256 == resolved("labellers:above").source_sha256


def test_digest_follows_what_decides_the_labels() -> None:
    base = Custom(function="a:b")
    assert Custom(function="a:b", gpu=True, diameter=9).digest() == base.digest()
    others = [
        Custom(function="a:c"),
        Custom(function="a:b", kwargs={"x": 1}),
        Custom(function="a:b", version="2"),
    ]
    assert len({base.digest(), *(o.digest() for o in others)}) == 4
    one, other = {"x": 1, "y": 2}, {"y": 2, "x": 1}
    assert (
        Custom(function="a:b", kwargs=one).digest() == Custom(function="a:b", kwargs=other).digest()
    )


def test_a_gpu_function_may_use_half_of_the_budget() -> None:
    assert Custom(function="a:b").device_bytes((100, 100), 2, 3) == 0
    assert Custom(function="a:b", gpu=True).device_bytes((100, 100), 2, 3) == 2 * 60_000
