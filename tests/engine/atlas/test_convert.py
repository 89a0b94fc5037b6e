from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scanpy")

import anndata
from atlases import annotated, simulate, write_atlas

from cytopave.engine.atlas import convert
from cytopave.engine.atlas.convert import convert_atlas
from cytopave.engine.atlas.store import open_atlas
from cytopave.engine.errors import AtlasError, CorruptError, OutputError


def as_is(x: Any) -> Any:
    return x


FORMS = [as_is, lambda x: x.tocsc(), lambda x: x.toarray()]


def filled() -> Any:
    x, truth = simulate(130, 40)
    adata = annotated(x, truth)
    adata.obsm["spatial"] = np.arange(260.0).reshape(130, 2)
    adata.layers["counts"] = x.copy()
    adata.raw = adata.copy()
    adata.uns["note"] = "kept"
    return adata


@pytest.mark.parametrize("form", FORMS)
def test_the_matrix_and_all_else_are_the_same(
    tmp_path: Path, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "BAND", 500)  # so that bands and pieces are many
    adata = filled()
    x = adata.X.toarray()
    adata.X = form(adata.X)
    adata.write_h5ad(tmp_path / "a.h5ad")
    shares: list[float] = []
    made = convert_atlas(tmp_path / "a.h5ad", tmp_path / "a.zarr", progress=shares.append)
    again = anndata.read_zarr(made)
    assert open_atlas(made).kind == ("csr" if form is not FORMS[2] else "dense")
    np.testing.assert_array_equal(np.asarray(again.to_df()), x)
    assert again.obs.equals(adata.obs)
    np.testing.assert_array_equal(again.obsm["spatial"], adata.obsm["spatial"])
    assert again.uns["note"] == "kept"
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5ad", "a.zarr"]


@pytest.mark.parametrize("x", ["raw", "layers/counts"])
def test_counts_are_taken_from_where_they_are(tmp_path: Path, x: str) -> None:
    adata = filled()
    counts = adata.X.toarray()
    adata.X = np.full(adata.shape, -1, np.float32)
    adata.write_h5ad(tmp_path / "a.h5ad")
    made = convert_atlas(tmp_path / "a.h5ad", tmp_path / "a.zarr", x=x)
    np.testing.assert_array_equal(open_atlas(made).read(0, 130).toarray(), counts)


def test_a_store_by_columns_becomes_one_by_rows(tmp_path: Path) -> None:
    x, _ = simulate(50, 20)
    source = write_atlas(tmp_path, annotated(x.tocsc()), "columns.zarr")
    made = convert_atlas(source, tmp_path / "rows.zarr")
    np.testing.assert_array_equal(open_atlas(made).read(0, 50).toarray(), x.toarray())


def test_what_cannot_be_converted_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    adata = filled()
    adata.write_h5ad(tmp_path / "a.h5ad")
    content = (tmp_path / "a.h5ad").read_bytes()
    (tmp_path / "cut.h5ad").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.h5ad").write_text("no HDF5")
    out = tmp_path / "out.zarr"
    with pytest.raises(AtlasError, match="there is no file"):
        convert_atlas(tmp_path / "none.h5ad", out)
    for name in ("cut.h5ad", "text.h5ad"):
        with pytest.raises((AtlasError, CorruptError), match="damaged"):
            convert_atlas(tmp_path / name, out)
    with pytest.raises(AtlasError, match=r"no layers/none .*there is X, raw, layers/counts"):
        convert_atlas(tmp_path / "a.h5ad", out, x="layers/none")
    assert not out.exists()
    out.mkdir()
    with pytest.raises(OutputError, match="exists"):
        convert_atlas(tmp_path / "a.h5ad", out)
    convert_atlas(tmp_path / "a.h5ad", out, overwrite=True)
    assert open_atlas(out).n_cells == 130
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
