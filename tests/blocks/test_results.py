"""Where results are kept is looked at before a run: Prefect would go on without keeping any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prefect.filesystems import LocalFileSystem

from cytopave.blocks import Cluster
from cytopave.blocks.results import check_results
from cytopave.engine.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_made(tmp_path: Path) -> None:
    check_results(None)
    check_results(str(tmp_path / "new" / "results"))
    assert (tmp_path / "new" / "results").is_dir()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (("file", "File exists"), ("file/results", "Not a directory")):
        with pytest.raises(UserError, match=rf"cannot be written \({why}\): name a folder"):
            check_results(str(tmp_path / path))


@pytest.mark.usefixtures("prefect_api")
def test_a_saved_storage(tmp_path: Path) -> None:
    LocalFileSystem(basepath=str(tmp_path)).save("kept-results")
    check_results("local-file-system/kept-results")
    check_results("local-file-system/kept-results", api=False)
    Cluster().save("no-storage")
    with pytest.raises(UserError, match="a block that keeps no files"):
        check_results("cytopave-cluster/no-storage")


@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize(
    "name", ["local-file-system/lost", "no-such-type/kept-results", "lost-type/lost"]
)
def test_a_storage_that_nobody_saved(tmp_path: Path, name: str) -> None:
    LocalFileSystem(basepath=str(tmp_path)).save("kept-results", overwrite=True)
    with pytest.raises(UserError, match=f"CYTOPAVE_RESULTS={name} names a storage block that no"):
        check_results(name)


def test_what_is_certain_needs_no_api() -> None:
    """Nothing of that name is in the database of this machine."""
    with pytest.raises(UserError, match="names a storage block that nobody saved"):
        check_results("s3-bucket/never-saved-anywhere", api=False)
