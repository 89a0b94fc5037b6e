"""``cytopave plan``: what a run would do, and whether it fits; nothing is computed or left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.deployments.cli.calibrate import Calibrating, calibrate
from cytopave.deployments.cli.clusters import expected_budget, expected_workers, find_cluster
from cytopave.deployments.cli.console import GIB, write_facts, write_json
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, Keeping, Request, check_positive

if TYPE_CHECKING:
    from cytopave.engine.planning.plan import Plan

_MOST_COUNTED = 50_000  # tiles; counting takes about a millisecond each
_MOST_BLOCKS = 16  # of a mask; each takes up to half a second to look at


def plan(
    image: str,
    /,
    *,
    request: Request = Request(),  # noqa: B008
    keeping: Keeping = Keeping(),  # noqa: B008
    calibrating: Calibrating = Calibrating(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Show the tiles, the memory and the reads of a run, without running it; or choose a halo.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        request: What ``segment`` would be given.
        keeping: Of no consequence here.
        calibrating: How a halo is found from the data.
        common: Options of every command.
    """
    if calibrating.calibrate:
        check_positive(crop=calibrating.crop)
        calibrate(image, request, crop=calibrating.crop, json=common.json)
        return
    prepare_prefect(verbose=common.verbose)
    made, workers = _final_plan(image, request, verbose=common.verbose)
    facts = plan_facts(made, workers=workers)
    if common.json:
        write_json(facts)
        return
    write_facts(_lines(facts))


def _final_plan(image: str, request: Request, *, verbose: bool) -> tuple[Plan, int]:
    from cytopave.engine.planning.planner import draft_plan, make_plan
    from cytopave.engine.settings import load_settings

    settings = load_settings()
    image, parameters = request.resolved(image, verbose=verbose)
    draft = draft_plan(image, workers=request.sharing, **parameters)
    cluster = find_cluster(request.cluster)
    segmenter = draft.segmenter
    workers = request.workers or expected_workers(cluster, gpu=segmenter.uses_gpu)
    budget = expected_budget(
        cluster,
        segmenter,
        workers=workers,
        assumed_gb=request.gpu_memory_gb or settings.gpu_memory_gb,
    )
    parameters |= draft.settled
    made = make_plan(
        image, budget=budget, workers=workers, batch_seconds=settings.batch_seconds, **parameters
    )
    return made, workers


def plan_facts(made: Plan, *, workers: int) -> dict[str, Any]:
    """What the plan says, as JSON values; sizes in bytes."""
    grid, image = made.grid, made.image
    return {
        "image": image.url,
        "level": image.level,
        "axes": image.axes,
        "shape": list(image.shape),
        "dtype": image.dtype,
        "channels": [image.channels[i] for i in made.channels],
        "labels": str(made.target.published),
        "digest": made.digest,
        "segmenter": made.segmenter.provenance(),
        **_masked(made),
        "tiles": len(grid),
        "grid": list(grid.counts),
        "times": grid.times,
        "tile": list(grid.tile),
        "largest_core": list(grid.largest_core),
        "halo": list(grid.halo),
        "finished_tiles": len(made.scratch.finished()),
        "batches": len(made.batches),
        "tiles_per_batch": max(map(len, made.batches)),
        "workers": workers,
        "memory": {
            "need": made.memory.need,
            "budget": made.memory.budget,
            "source": made.memory.source,
        },
        "scratch": {"folder": str(made.root), "at_most": _scratch_bytes(made)},
        "chunks": _chunks(made),
    }


def _masked(made: Plan) -> dict[str, Any]:
    """What decides which tiles are segmented, and how many are not; nothing without a mask."""
    if made.foreground is None:
        return {}
    blocks = made.foreground.blocks()
    skipped = None
    if len(blocks) <= _MOST_BLOCKS:
        skipped = len(made.grid) - int(made.foreground.tiles(made.grid, blocks).sum())
    return {"mask": made.foreground.provenance(), "skipped_tiles": skipped}


def _scratch_bytes(made: Plan) -> int:
    """Size of all tile files before compression, were all tiles as large as an inner one.

    Tables of what each tile found are left out.
    """
    import numpy as np

    from cytopave.engine.scratch.tiles import shared_zone
    from cytopave.engine.tables.tile_sums import strips

    grid = made.grid
    inner = grid[grid.index(0, tuple(min(1, n - 1) for n in grid.counts))]
    zones = (shared_zone(grid, inner, step) for step, _ in grid.neighbours(inner))
    of_tile = 4 * (inner.core.size + sum(z.size for z in zones if z))
    if made.measured_in_tiles:
        pixel = np.dtype(made.image.dtype).itemsize * max(1, len(made.measured or ()))
        of_tile += pixel * sum(box.size for box in strips(grid, inner))
    return len(grid) * of_tile


def _chunks(made: Plan) -> dict[str, int] | None:
    from cytopave.engine.reading import chunk_reads

    if len(made.grid) > _MOST_COUNTED:
        return None
    batches = ([made.grid[i] for i in batch] for batch in made.batches)
    decodes, chunks = chunk_reads(made.image, batches, channels=made.channels)
    return {"chunks": chunks, "decodes": decodes}


def _lines(facts: dict[str, Any]) -> dict[str, object]:
    """The same for people."""
    memory, scratch, chunks = facts["memory"], facts["scratch"], facts["chunks"]
    times = f", {facts['times']} time points" if facts["times"] > 1 else ""
    from cytopave.engine.segmenters.base import told

    method = told(facts["segmenter"])
    finished = facts["finished_tiles"]
    return {
        "image": f"{facts['image']}, level {facts['level']}, {facts['axes']} {_by(facts['shape'])} "
        f"{facts['dtype']}",
        **({"channels": ", ".join(facts["channels"])} if facts["channels"] else {}),
        "segmenter": ", ".join(f"{k}={v}" for k, v in method.items()),
        "labels": facts["labels"],
        **_mask_line(facts),
        "tiles": f"{facts['tiles']} ({_by(facts['grid'])}{times}) of "
        f"{_by(facts['largest_core'])} pixels, "
        f"halo {_by(facts['halo'])}" + (f"; {finished} are finished" if finished else ""),
        "batches": f"{facts['batches']} of up to {facts['tiles_per_batch']} tiles, "
        f"for {facts['workers']} workers",
        "memory": f"{_size(memory['need'])} a tile, of {_size(memory['budget'])} "
        f"({memory['source']})",
        "scratch": f"at most {_size(scratch['at_most'])} before compression in {scratch['folder']}",
        "reads": f"{chunks['decodes']} chunk decodes for {chunks['chunks']} chunks"
        if chunks
        else "not counted for so many tiles",
    }


def _mask_line(facts: dict[str, Any]) -> dict[str, object]:
    if "mask" not in facts:
        return {}
    options = ", ".join(f"{k}={v}" for k, v in facts["mask"].items() if k != "digest")
    skipped = facts["skipped_tiles"]
    count = "so large that tiles are counted by the run" if skipped is None else f"{skipped} tiles"
    return {"mask": f"{options}; skipped: {count}"}


def _by(lengths: list[int]) -> str:
    return " x ".join(map(str, lengths))


def _size(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.1f} MiB"
