from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy import sparse

pytest.importorskip("scanpy")

import anndata
from atlases import annotated, make_atlas, simulate, write_atlas

from cytopave.engine.atlas import frames
from cytopave.engine.atlas.store import check_values, open_atlas
from cytopave.engine.errors import AtlasError, CorruptError


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint16])
def test_rows_are_read_as_they_were_written(tmp_path: Path, dense: bool, dtype: Any) -> None:
    x, _ = simulate(90, 40)
    x = x.astype(dtype)
    store = open_atlas(write_atlas(tmp_path, annotated(x.toarray() if dense else x)))
    assert (store.kind, store.n_cells, store.n_genes) == ("dense" if dense else "csr", 90, 40)
    for start, stop in ((0, 90), (13, 57), (89, 90)):
        block = store.read(start, stop)
        assert block.dtype == np.float32
        values = block if dense else block.toarray()
        np.testing.assert_array_equal(values, x[start:stop].toarray())
    assert store.row_ends()[-1] == (90 * 40 if dense else x.nnz)


def test_zarr_version_2_is_read(tmp_path: Path) -> None:
    x, _ = simulate(30, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anndata.settings, "zarr_write_format", 2)
        path = write_atlas(tmp_path, annotated(x))
    assert not (path / "zarr.json").exists()
    np.testing.assert_array_equal(open_atlas(path).read(0, 30).toarray(), x.toarray())


def test_wide_row_ends_are_read_and_columns_stay_narrow(tmp_path: Path) -> None:
    x, _ = simulate(30, 20)
    x.indptr, x.indices = x.indptr.astype(np.int64), x.indices.astype(np.int64)
    path = write_atlas(tmp_path, annotated(x))
    assert zarr.open_array(path / "X" / "indptr", mode="r").dtype == np.int64
    block = open_atlas(path).read(5, 25)
    assert block.indices.dtype == np.int32
    np.testing.assert_array_equal(block.toarray(), x.toarray()[5:25])


def test_rows_whose_columns_are_not_in_order_are_put_in_order(tmp_path: Path) -> None:
    parts = [np.array(part) for part in ([3, 1, 2], [2, 0, 1], [0, 2, 3])]
    x = sparse.csr_matrix((parts[0].astype(np.float32), *parts[1:]), (2, 3))
    block = open_atlas(write_atlas(tmp_path, annotated(x))).read(0, 2)
    assert block.indices.tolist() == [0, 2, 1]
    assert block.toarray().tolist() == [[1, 0, 3], [0, 2, 0]]


def refused(path: Path, match: str) -> None:
    with pytest.raises(AtlasError, match=match):
        open_atlas(path)


def test_what_is_no_atlas_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.zarr", "no zarr group at")
    refused(tmp_path / "cells.h5ad", "convert it first")
    zarr.open_group(str(tmp_path / "group.zarr"), mode="w")
    refused(tmp_path / "group.zarr", "holds no AnnData with a matrix X")


def test_a_matrix_stored_by_columns_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    x, _ = simulate(30, 20)
    refused(write_atlas(tmp_path, annotated(x.tocsc())), r"by columns \(CSC\).*cytopave convert")


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    path = make_atlas(tmp_path, 30, 20).path
    array = zarr.open_array(str(path / "X" / "data"), mode="r+")
    array.resize((array.shape[0] - 1,))
    refused(path, "is damaged")


def corrupt(path: Path, match: str) -> None:
    with pytest.raises(CorruptError, match=match):
        read_all(path)


def read_all(path: Path) -> None:
    store = open_atlas(path)
    store.row_ends()
    store.read(0, store.n_cells)


def overwrite(path: Path, name: str, at: int, value: int) -> None:
    zarr.open_array(str(path / "X" / name), mode="r+")[at] = value


def test_damage_is_told_and_never_read_as_zeros(tmp_path: Path) -> None:
    original = make_atlas(tmp_path, 60, 20).path

    def copy(name: str) -> Path:
        return Path(shutil.copytree(original, tmp_path / name))

    path = copy("truncated")
    for chunk in (path / "X" / "data" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(chunk.read_bytes()[:-9])
    corrupt(path, "X/data .* is missing, truncated or damaged")
    path = copy("ends")
    overwrite(path, "indptr", 5, 10_000_000)
    corrupt(path, r"its rows \(indptr\) do not fit")
    path = copy("columns")
    overwrite(path, "indices", 7, 20)
    corrupt(path, "columns beyond the 20 genes")
    path = copy("missing-indices")
    shutil.rmtree(path / "X" / "indices" / "c")
    corrupt(path, "names a column twice")
    path = copy("missing-data")
    shutil.rmtree(path / "X" / "data" / "c")
    with pytest.raises(CorruptError, match="X/data is missing"):
        frames.check_chunks(open_atlas(path))
    frames.check_chunks(open_atlas(original))


def test_names_that_come_twice_are_refused_or_numbered(tmp_path: Path) -> None:
    x, _ = simulate(12, 4)
    adata = annotated(x)
    adata.var_names = ["A", "B", "A", "C"]
    store = open_atlas(write_atlas(tmp_path, adata))
    with pytest.raises(AtlasError, match=r"1 names of var .*'A'.*unique_names"):
        frames.read_names(store, "var", unique=False)
    assert frames.read_names(store, "var", unique=True) == ["A", "B", "A-1", "C"]
    assert frames.read_names(store, "obs", unique=False)[:2] == ["cell0", "cell1"]


@pytest.mark.parametrize("sparse_", [False, True])
def test_values_that_no_result_can_come_of_are_named(sparse_: bool) -> None:
    def block(value: float) -> Any:
        x = np.ones((4, 5), np.float32)
        x[2, 3] = value
        return sparse.csr_matrix(x) if sparse_ else x

    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(AtlasError, match=r"NaN or infinity \(row 102, column 3\)"):
            check_values(block(value), start=100, refuse_negative="use others", where="s")
    with pytest.raises(AtlasError, match=r"a negative value \(row 102, column 3\): use others"):
        check_values(block(-1), start=100, refuse_negative="use others", where="s")
    check_values(block(-1), start=0, refuse_negative=None, where="s")
    check_values(sparse.csr_matrix((3, 0)), start=0, refuse_negative="x", where="s")


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    store = open_atlas(make_atlas(tmp_path, 12, 4).path)
    with pytest.raises(AtlasError, match="no column 'patch': those there are batch, truth"):
        frames.read_column(store, "obs", "patch")


def test_the_fingerprint_follows_content_and_not_other_columns(tmp_path: Path) -> None:
    store = open_atlas(make_atlas(tmp_path, 12, 4).path)
    before = frames.fingerprint(store, ["batch"])
    zarr.open_group(store.url).create_array("obs/new", data=np.arange(12))
    assert frames.fingerprint(store, ["batch"]) == before
    overwrite(Path(store.url), "data", 0, 99)
    assert frames.fingerprint(store, ["batch"]) != before
