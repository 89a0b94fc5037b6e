"""From nuclei to cells: labels refined and related on real images, by worker processes."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import dying
import numpy as np
import stores
from labelled import labelled
from measured import measured
from refined import filled
from related import related
from runs import labels_of
from scipy import ndimage
from skimage.morphology import remove_small_objects
from skimage.segmentation import clear_border, expand_labels
from worlds import disks

from cytopave.engine import samples
from cytopave.engine.refine import ClearBorder, Expand, FillHoles, Relabel, RemoveSmall
from cytopave.engine.segmenters import Watershed
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runs import Flows


def test_real_nuclei_become_cells_and_find_theirs(folder: Path, flows: Flows) -> None:
    from cytopave.flows import measure_cells, refine_labels, relate_labels

    pixels, _ = samples.mosaic(samples.nuclei_fields("held-out"), 2, 3, side=220)
    image = stores.ome_image(folder / "nuclei.zarr", pixels, n_levels=2, chunks=(64, 64))
    tiling = Tiling(tile=(128, 128), halo=48)
    flows.segment(image, segmenter=Watershed(), name="nuclei", tiling=tiling)
    nuclei = labels_of(image, "nuclei")

    shared: dict[str, Any] = {"cluster": flows.address}
    refine: Callable[..., Any] = refine_labels
    operations = [FillHoles(), RemoveSmall(size="20um2"), ClearBorder(), Expand(distance=6)]
    report = refine(
        str(image), labels="nuclei", name="cells", operations=[*operations, Relabel()], **shared
    )
    cells = labels_of(image, "cells")
    kept = clear_border(remove_small_objects(filled(nuclei), max_size=79))  # pixels of 0.5 um
    wanted = expand_labels(kept, 6)
    # The same but for ids, which are new, and pixels as near to two cells.
    np.testing.assert_array_equal(cells > 0, wanted > 0)
    for new, old in enumerate(dict.fromkeys(kept[kept > 0].tolist()), 1):
        own = kept == old
        assert (cells[own] == new).all()
        other = (cells == new) != (wanted == old)
        nearest = ndimage.distance_transform_edt(kept == 0)[other]
        np.testing.assert_allclose(ndimage.distance_transform_edt(~own)[other], nearest)
    assert report.n_objects == cells.max() == len(np.unique(kept)) - 1 > 20
    assert report.n_before == nuclei.max() > report.n_objects

    measure: Callable[..., Any] = measure_cells
    measure(str(image), labels="cells", **shared)
    relate: Callable[..., Any] = relate_labels
    found = relate(
        str(image), child="nuclei", parent="cells", csv=str(folder / "nuclei.csv"), **shared
    )
    truth = related(nuclei, cells)
    table = open_table(image, "nuclei").read()
    assert table["in_cells"].tolist() == [p for p, _ in truth.values()]
    counts = Counter(p for p, _ in truth.values())
    assert open_table(image, "cells").read()["n_nuclei"].tolist() == [
        counts[i + 1] for i in range(cells.max())
    ]
    assert found.n_without_parent == counts[0] > 0
    assert len((folder / "nuclei.csv").read_text().splitlines()) == nuclei.max() + 1
    assert sorted(p.name for p in folder.iterdir()) == ["nuclei.csv", "nuclei.zarr"]
    # A second time, only files are written.
    again = relate(
        str(image), child="nuclei", parent="cells", parquet=str(folder / "a.parquet"), **shared
    )
    assert not again.related


def test_killed_at_any_step(folder: Path) -> None:
    """Whatever has a name is whole: a run dies after some renaming, the next one completes."""
    nuclei = disks((96, 90), radius=6, pitch=18).astype(np.uint32)
    nuclei[::11, ::7] = 0
    image = labelled(folder / "image.zarr", {"nuclei": nuclei}, chunks=(48, 48))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dying"])

    def run(dies_after: int | None) -> int | None:
        child = context.Process(target=dying.refine_and_relate, args=(str(image), dies_after))
        child.start()
        child.join()
        return child.exitcode

    measured(image, "nuclei")
    begin = folder / "begin.zarr"
    shutil.copytree(image, begin)
    assert run(None) == 0
    truth, columns = labels_of(image), open_table(image, "nuclei").read()
    assert truth.max() > 9
    died, step = True, 1
    while died:
        shutil.rmtree(image)
        shutil.copytree(begin, image)
        shutil.rmtree(folder / ".cytopave")
        died = run(step) == -signal.SIGKILL
        if "cells" in stores.listed(image):
            np.testing.assert_array_equal(labels_of(image), truth)
        seen = open_table(image, "nuclei").read()
        assert all((seen[name] == columns[name]).all() for name in seen)
        assert run(None) == 0
        np.testing.assert_array_equal(labels_of(image), truth)
        found = open_table(image, "nuclei").read()
        assert found.keys() == columns.keys()
        assert all((found[name] == columns[name]).all() for name in columns)
        assert "n_nuclei" in open_table(image, "cells").obs
        hidden = [p for p in (image / "labels").iterdir() if p.name.startswith(".")]
        assert not hidden
        step += 8
    assert step > 30
