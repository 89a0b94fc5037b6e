"""Tables as CSV and Parquet: everything, to the last digit, a chunk of rows at a time."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import stores
from measured import measured

from cytopave.engine.errors import MissingExtraError, OutputError
from cytopave.engine.tables import read
from cytopave.engine.tables.export import check_exports, export_csv, export_parquet
from cytopave.engine.tables.read import Table, open_table


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((2, 90, 80)), axes="cyx")
    stores.plain_array(tmp_path / "l.zarr", stores.random_labels((90, 80)))
    measured(image, tmp_path / "l.zarr")
    monkeypatch.setattr(read, "CHUNK", 20)
    found = open_table(image, "l")
    assert len(found) > 60
    return found


def test_csv(table: Table, tmp_path: Path) -> None:
    export_csv(table, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    wanted = table.read()
    assert header == list(wanted)
    assert len(rows) == len(table)
    for name, column in zip(header, zip(*rows, strict=True), strict=True):
        if name == "touches_border":
            assert column == tuple(map(str, wanted[name].tolist()))
        else:
            np.testing.assert_array_equal(np.array(column, wanted[name].dtype), wanted[name])


def test_parquet(table: Table, tmp_path: Path) -> None:
    export_parquet(table, tmp_path / "a.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.num_row_groups == -(-len(table) // 20)
    found = file.read()
    for name, column in table.read().items():
        np.testing.assert_array_equal(found[name].to_numpy(), column)
    made = json.loads(found.schema.metadata[b"cytopave"])
    assert made["fingerprint"] == table.made["fingerprint"]


def test_what_cannot_be_written(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")
    for path, says in (
        (there, "exists: choose another file"),
        (tmp_path, "is a folder: name a file"),
        (tmp_path / "absent" / "a.csv", "is no folder to write to"),
    ):
        with pytest.raises(OutputError, match=says):
            check_exports({"csv": path}, overwrite=False)
    assert check_exports({"csv": there}, overwrite=True) == {"csv": there}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name)
    )
    with pytest.raises(MissingExtraError, match=r"install the extra cytopave\[parquet\]"):
        check_exports({"parquet": tmp_path / "a.parquet"}, overwrite=False)
    with pytest.raises(OutputError, match="cannot be written"):
        export_csv(table, tmp_path / "absent" / "a.csv")
    monkeypatch.setattr(Table, "chunks", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        export_csv(table, there)
    assert there.read_text() == "mine"
    assert not list(tmp_path.glob(".there*"))
