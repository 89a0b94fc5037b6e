"""Sweeps that segment in their own process, and housekeeping, as flows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
import stores
import zarr
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed
from runs import labels_of, plan_of, provenance

from cytopave.blocks import ImageStore
from cytopave.blocks.saved import load_saved
from cytopave.engine.errors import ImageError, SweepError, UserError
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.scratch.tenancy import occupied
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling
from cytopave.flows import clean_scratch, segment_image, sweep_images
from cytopave.tasks.sweep import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State

    from cytopave.flows.housekeeping import Cleaning
    from cytopave.flows.sweep import SweepReport

METHOD = Threshold(threshold=100)
TILING = Tiling(tile=(64, 64), halo=8)


def write(path: Path) -> Path:
    pixels = np.zeros((96, 80), np.uint8)
    pixels[10:40, 10:40] = pixels[50:80, 40:75] = 200
    return stores.ome_image(path, pixels, chunks=(48, 40))


@pytest.fixture
def sweep(folder: Path, prefect_api: str, dask_address: str) -> Callable[..., SweepReport]:
    del prefect_api

    def run(**kwargs: Any) -> SweepReport:
        shared = {"cluster": dask_address, "tiling": TILING}
        options: dict[str, Any] = {
            "segmenter": METHOD,
            "parameters": shared,
            "settled_seconds": 0,
        } | kwargs
        flow: Any = sweep_images
        report: SweepReport = flow(**{"folder": str(folder)} | options)
        return report

    return run


def actions(report: SweepReport) -> dict[str, tuple[str, str]]:
    return {Path(row.image).name: (row.state, row.action) for row in report.images}


def test_a_folder_over_time(folder: Path, sweep: Callable[..., SweepReport]) -> None:
    a, b = write(folder / "a.zarr"), write(folder / "b.zarr")
    stores.plain_array(folder / "line.zarr", np.zeros(5, np.uint8))
    line = {"line.zarr": ("unreadable", "none")}
    assert actions(sweep(dry_run=True)) == line | {
        "a.zarr": ("new", "start"),
        "b.zarr": ("new", "start"),
    }
    assert stores.listed(a) == []
    first = sweep(match="a*")
    assert actions(first) == {"a.zarr": ("new", "made")}
    assert labels_of(a).max() == 2
    assert provenance(a)["tile"] == [64, 64]
    assert actions(sweep()) == line | {"a.zarr": ("labelled", "none"), "b.zarr": ("new", "made")}
    made = open_labels(b, "cells").attributes["cytopave"]
    zarr.open_array(str(a / "s0"))[40:48, 10:40] = 200
    assert actions(sweep()) == line | {
        "a.zarr": ("changed", "made"),
        "b.zarr": ("labelled", "none"),
    }
    assert labels_of(a)[45, 20] == labels_of(a)[20, 20] != 0
    assert open_labels(b, "cells").attributes["cytopave"] == made
    # Another name or another folder is another matter.
    assert actions(sweep(match="b*", output=str(folder.parent / "out"))) == {
        "b.zarr": ("new", "made")
    }
    assert labels_of(folder.parent / "out" / "b.zarr").max() == 2


def test_one_that_fails_stops_nobody(folder: Path, sweep: Callable[..., SweepReport]) -> None:
    for name in ("a.zarr", "b.zarr"):
        write(folder / name)
    (folder / "a.zarr" / "s0" / "c" / "0" / "0").write_bytes(b"broken")
    with pytest.raises(SweepError, match=r"1 of 2 images failed, .*a\.zarr: .*batches failed"):
        sweep()
    assert stores.listed(folder / "b.zarr") == ["cells"]
    assert stores.listed(folder / "a.zarr") == []


def test_which_runs_a_deployment_gets(
    folder: Path, sweep: Callable[..., SweepReport], prefect_api: str
) -> None:
    """None of its runs is ever executed: what becomes of them is said by the test."""
    write(folder / "a.zarr")
    idle = "segment-image/idle"
    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        get_client(sync_client=True) as client,
    ):
        flow_id = client.create_flow(segment_image)
        client.create_deployment(flow_id, name="idle", parameters={"cluster": "cpu"})

        def look(**kwargs: Any) -> tuple[str, UUID | None]:
            (row,) = sweep(deployment=idle, **kwargs).images
            return row.action, UUID(row.run) if row.run else None

        def end(run: UUID | None, state: State[Any]) -> None:
            assert run is not None
            client.set_flow_run_state(run, state, force=True)

        assert look(dry_run=True) == ("start", None)
        action, first = look()
        assert action == "started"
        assert look() == ("under way", first)
        asked = client.read_flow_run(first).parameters  # type: ignore[arg-type]
        assert asked["tiling"] == TILING.model_dump(mode="json")
        assert (asked["name"], asked["overwrite"]) == ("cells", False)
        # One that failed would fail again; people decide.
        end(first, Failed())
        assert look() == ("failed before", first)
        action, second = look(retry_failed=True)
        assert action == "started"
        assert second != first
        # One that crashed is started again, but not for ever.
        end(second, Crashed())
        action, third = look()
        assert action == "started"
        end(third, Crashed())
        assert look() == ("failed before", third)
        # Other parameters, or other pixels, are another matter; so are labels that were deleted.
        action, other = look(name="others")
        assert (action, other in (first, second, third)) == ("started", False)
        end(other, Completed())
        assert look(name="others")[0] == "started"
        zarr.open_array(str(folder / "a.zarr" / "s0"))[0, 0] = 7
        assert look()[0] == "started"


def test_a_bucket_by_its_store(
    folder: Path, tmp_path: Path, sweep: Callable[..., SweepReport], dask_address: str
) -> None:
    """A URL, and options without which nothing can be written there; saved, inline, in part."""
    (folder / "day").mkdir()
    write(folder / "day" / "a.zarr")
    options = {"auto_mkdir": True}
    inline = ImageStore(url=f"local://{folder}", storage_options=options)
    parameters = {"cluster": dask_address, "tiling": TILING, "scratch": str(tmp_path / "scratch")}
    (row,) = sweep(folder=inline, parameters=parameters).images
    assert (row.state, row.action) == ("new", "made")
    assert row.image.startswith("store://inline-")
    assert labels_of(folder / "day" / "a.zarr").max() == 2
    ImageStore(url=f"local://{folder}", storage_options=options).save("swept")
    ImageStore(url=str(folder)).save("swept-local")
    for again in (ImageStore.load("swept"), "store://swept", "store://swept/day"):
        (row,) = sweep(folder=again).images
        assert (row.state, row.action) == ("labelled", "none")
        assert row.image == "store://swept/day/a.zarr"
    # A store of this machine's is its folder, however it is named.
    for local in (ImageStore(url=str(folder)), "store://swept-local"):
        (row,) = sweep(folder=local, name="others", dry_run=True).images
        assert (row.image, row.action) == (str(folder / "day" / "a.zarr"), "start")
    place = Place.of("store://swept-local/day/a.zarr", "cells", None)
    assert place == Place.of(str(folder / "day" / "a.zarr"), "cells", None)
    with pytest.raises(ImageError, match="there is no image store 'unswept'"):
        sweep(folder="store://unswept")


def test_secrets_of_a_store_stay_in_it(
    folder: Path, sweep: Callable[..., SweepReport], prefect_api: str
) -> None:
    """Neither the sweep's run nor those that it starts show them."""
    write(folder / "a.zarr")
    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        get_client(sync_client=True) as client,
    ):
        client.create_deployment(client.create_flow(segment_image), name="idle-3")
        store = ImageStore(url=f"local://{folder}", secrets={"hint": "hunter2"})
        (row,) = sweep(folder=store, deployment="segment-image/idle-3").images
        assert row.run is not None
        asked = client.read_flow_run(UUID(row.run)).parameters
        assert asked["image"].startswith("store://inline-")
        runs = client.read_flow_runs()
        assert all("hunter2" not in repr(run.parameters) for run in runs)
        saved = load_saved(ImageStore, asked["image"].split("/")[2])
        assert saved is not None
        assert saved.options() == {"hint": "hunter2"}


def test_two_sweeps_at_once_start_one_run(
    folder: Path, sweep: Callable[..., SweepReport], prefect_api: str
) -> None:
    for number in range(4):
        write(folder / f"{number}.zarr")
    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        get_client(sync_client=True) as client,
        ThreadPoolExecutor() as pool,
    ):
        client.create_deployment(client.create_flow(segment_image), name="idle-2")
        sweeps = [pool.submit(sweep, deployment="segment-image/idle-2") for _ in range(2)]
        found = [{row.image: row.run for row in s.result().images} for s in sweeps]
    assert found[0] == found[1]
    assert None not in found[0].values()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameters": {"overwrite": True}}, "sets 'overwrite' itself"),
        ({"parameters": {"tilling": 3}}, "has no such parameter"),
        ({"parameters": {"level": "coarse"}}, "not those of segment-image: .*level"),
        ({"deployment": "segment-image/absent"}, "there is no deployment 'segment-image/absent'"),
        (
            {"parameters": {"cluster": "nvlnk"}},
            "no cluster 'nvlnk' .did you mean 'nvlink'",
        ),
        ({"deployment": "absent"}, "there is no deployment 'absent': write flow/deployment"),
    ],
)
def test_bad_requests(
    folder: Path, sweep: Callable[..., SweepReport], changes: dict[str, Any], says: str
) -> None:
    write(folder / "a.zarr")
    with pytest.raises(UserError, match=says):
        sweep(**changes)
    assert stores.listed(folder / "a.zarr") == []


def test_clean_scratch(folder: Path, prefect_api: str) -> None:
    del prefect_api
    old, young = (write(folder / name) for name in ("old.zarr", "young.zarr"))
    roots = [plan_of(p, segmenter=METHOD, tiling=TILING).root for p in (old, young)]
    used = plan_of(old, segmenter=METHOD, tiling=Tiling(tile=(32, 32), halo=8)).root

    def clean(days: float, **kwargs: Any) -> dict[str, str]:
        report: Cleaning = clean_scratch([str(folder)], older_than_days=days, **kwargs)
        gone = [row for row in report.found if "deleted" in row.action]
        assert report.freed == sum(row.size for row in gone)
        assert (report.freed > 0) == bool(gone)
        return {Path(row.path).name: row.action for row in report.found}

    with occupied(used, remove=False):
        assert set(clean(14).values()) == {"too young", "in use"}
        plan = dict.fromkeys((r.name for r in roots), "to be deleted") | {used.name: "in use"}
        assert clean(0, dry_run=True) == plan
        assert all(root.exists() for root in roots)
        assert clean(0) == dict.fromkeys((r.name for r in roots), "deleted") | {used.name: "in use"}
    assert [p.name for p in folder.rglob("*") if p.is_dir() and len(p.name) == 16] == [used.name]
    with pytest.raises(ImageError, match="there is no folder"):
        clean_scratch([str(folder / "absent")])
