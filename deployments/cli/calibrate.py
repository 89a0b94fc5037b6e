"""``cytopave plan --calibrate``: a halo and a tile from the data."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cytopave.deployments.cli.console import say, write_facts, write_json, write_table
from cytopave.deployments.cli.options import Flag, Request  # noqa: TC001  cyclopts reads them

if TYPE_CHECKING:
    from cytopave.engine.planning.calibrate import Calibration, Trial


_FEW = 30  # objects on seams, from which on a trial says something


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Calibrating:
    """How a halo is found: options of ``plan``."""

    calibrate: Flag = False
    """Segment a crop undivided and with ever longer halos, and recommend a halo and a tile."""
    crop: int = 1024
    """Height and width of that crop in pixels."""


def calibrate(image: str, request: Request, *, crop: int, json: bool) -> None:
    """Find the halo, and print what was tried and the command to use.

    Raises:
        UserError: The request cannot be carried out.
    """
    from cytopave.engine.omezarr.image import open_image
    from cytopave.engine.planning.budget import local_budget
    from cytopave.engine.planning.calibrate import HALOS
    from cytopave.engine.planning.calibrate import calibrate as find
    from cytopave.engine.planning.planner import plan_grids
    from cytopave.engine.settings import load_settings
    from cytopave.engine.tiling import Tiling

    parameters = request.parameters()
    source = open_image(image, level=request.level, axes=request.axes)
    channels = source.channel_indices(parameters["channels"])
    segmenter = parameters["segmenter"].resolve(source, channels=channels)
    made = find(
        source,
        segmenter,
        channels=channels,
        side=crop,
        halos=_halos(request) or HALOS,
        merge=parameters["merge"],
        mask=parameters["mask"],
        told=None if json or not sys.stderr.isatty() else _tell,
    )
    assumed = request.gpu_memory_gb or load_settings().gpu_memory_gb
    budget = local_budget(segmenter, workers=request.sharing or 1, assumed_gb=assumed)
    tiling = Tiling(tile=parameters["tiling"].tile, halo=made.halo)
    grid = plan_grids(source, tiling, segmenter, budget, n_channels=max(1, len(channels)))[0]
    command = command_line(image, request, tile=grid.tile, halo=made.halo)
    if json:
        facts = made.model_dump(mode="json")
        write_json({**facts, "recommended_tile": list(grid.tile), "command": command})
        return
    _show(made, grid.tile, command)


def command_line(
    image: str, request: Request, *, tile: tuple[int, ...], halo: tuple[int, ...]
) -> str:
    """The command that segments the image as the request says, with this tile and halo."""
    tokens = ["cytopave", "segment", image]
    for option in fields(request):
        value = getattr(request, option.name)
        if option.name in ("tile", "halo") or value == option.default:
            continue
        tokens += _tokens("--" + option.name.replace("_", "-"), value)
    tokens += ["--tile", ",".join(map(str, tile)), "--halo", ",".join(map(str, halo))]
    return shlex.join(tokens)


def _tokens(option: str, value: Any) -> list[str]:
    if value is True:
        return [option]
    many = value if isinstance(value, tuple) else (value,)
    return [token for one in many for token in (option, str(one))]


def _halos(request: Request) -> list[int]:
    """The halo that was asked for, to be tried alone; none where that is open."""
    halo = request.parameters()["tiling"].halo
    return [] if halo == "auto" else [halo if isinstance(halo, int) else halo[-1]]


def _tell(trial: Trial) -> None:
    say(f"halo {trial.halo[-1]}: {trial.changed} of {trial.objects} objects changed")


def _show(made: Calibration, tile: tuple[int, ...], command: str) -> None:
    start, stop = made.crop
    where = ", ".join(f"{a}:{b}" for a, b in zip(start, stop, strict=True))
    write_table(made.rows(), title="Tiles against the undivided crop")
    best = next(t for t in made.trials if t.halo == made.halo)
    verdict = (
        "the shortest of these that changes no object"
        if made.invisible
        else f"none of these leaves all objects as they are; this one changes "
        f"{best.changed} of {best.objects}"
    )
    few = f"only {best.on_seams} objects lie on seams of the crop: a larger --crop says more"
    write_facts(
        {
            "crop": f"pixels {where}, {made.foreground:.0%} foreground",
            "halo": f"{_by(made.halo)}: {verdict}",
            "tile": _by(tile),
            **({"but": few} if best.on_seams < _FEW else {}),
            "command": command,
        }
    )


def _by(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))
