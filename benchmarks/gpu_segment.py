"""One large image on one GPU: our flow and loop, patchworks, stock Cellpose, network and limit.

    python benchmarks/gpu_segment.py FOLDER OUT.json [--peers SITE] [--parts PART ...] [--small]

8192 x 8192 pixels, tile 2048, halo 64, in one run. Everybody has the same oracle (``oracle_site``):
the network costs what it costs and answers with known cells, so that what each finds can be
counted. Each part is a process of its own, and is written to OUT.json as soon as it is done; the
table is printed at the end. ``--peers`` is a folder into which patchworks was installed.
``--small`` takes a small image and network: for a look at whether all of it runs, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tables import print_table

HERE = Path(__file__).parent
PARTS = ("world", "network", "loop", "flow", "warm", "patchworks", "stock")
"""What can be asked for; each needs ``world``."""


def main() -> None:
    """Run the parts that were asked for, one after the other, and print what they found."""
    options = _options()
    folder, out = options.folder.absolute(), options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    found.setdefault("when", time.strftime("%Y-%m-%d %H:%M:%S"))
    for part in options.parts:
        for name, command in _commands(part, folder, options):
            since = time.perf_counter()
            found[name] = _run(command, _environment(folder, options))
            found[name]["wall_s"] = round(time.perf_counter() - since, 2)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
            out.write_text(json.dumps(found, indent=1))
    show(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for images, weights and results: 2 GB")
    parser.add_argument("out", type=Path, help="JSON; parts that are in it and not run again stay")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--peers", type=Path, help="folder that patchworks was installed into")
    parser.add_argument("--small", action="store_true", help="a small image and network")
    parser.add_argument("--side", type=int, help="of the image; 8192, or 768 if small")
    parser.add_argument("--tile", type=int, help="2048, or 256 if small")
    parser.add_argument("--halo", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 32], help="for the loop")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the flow on warm workers")
    parser.add_argument("--peer-batch", type=int, default=64, help="patches at a time for stock")
    parser.add_argument("--peer-workers", type=int, nargs="+", default=[1, 0], help="0: its choice")
    options = parser.parse_args()
    options.side = options.side or (768 if options.small else 8192)
    options.tile = options.tile or (256 if options.small else 2048)
    return options


def _commands(part: str, folder: Path, options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """The processes of a part: a name and a command line each."""
    ours = [sys.executable, str(HERE / "gpu_segment_parts.py"), str(folder)]
    sizes = [str(options.tile), str(options.halo)]
    if part == "world":
        small = ["--small"] if options.small else []
        return [(part, [*ours, part, str(options.side), *sizes, *small])]
    if part == "network":
        return [(part, [*ours, part, str(options.peer_batch), *map(str, options.batches)])]
    if part == "loop":
        return [(part, [*ours, part, *sizes, *map(str, options.batches)])]
    if part == "flow":
        return [
            ("flow small", [*ours, "flow", "small-", *sizes]),
            ("flow", [*ours, "flow", "", *sizes]),
        ]
    if part == "warm":
        return [(part, [*ours, part, *sizes, str(options.repeat)])]
    if part == "stock":
        return [(part, [*ours, part, *sizes, str(options.peer_batch)])]
    script = [sys.executable, str(HERE / "run_patchworks_oracle.py"), str(folder), *sizes]
    batch = str(options.peer_batch)
    return [
        (f"patchworks, workers {n or 'auto'}", [*script, batch, str(n), "iou"])
        for n in options.peer_workers
    ]


def _environment(folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """The oracle for every process; nothing of this user's Prefect, nothing sent to anybody."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "CYTOPAVE_"))}
    first = [HERE / "oracle_site", *([options.peers.absolute()] if options.peers else []), HERE]
    env["PYTHONPATH"] = os.pathsep.join([*map(str, first), env.get("PYTHONPATH", "")])
    return env | {
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }


def _run(command: list[str], env: dict[str, str]) -> dict[str, Any]:
    """What a part's process printed last, as JSON; or how it failed: the next may still tell."""
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=env, check=False
        )
        said.seek(0)
        complaint = said.read()[-3000:]
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        return {"error": f"exit status {done.returncode}", "stderr": complaint}


def show(found: dict[str, Any]) -> None:
    """One table: seconds, beside the limit and beside the best run of patchworks."""
    network = found.get("network", {})
    cells = found.get("world", {}).get("cells")
    limit = network.get("limit_s")
    peers = [
        v["seconds"] for k, v in found.items() if k.startswith("patchworks") and "seconds" in v
    ]
    rows = []
    for name, facts in _rows(found):
        seconds = facts.get("seconds")
        if seconds is None:
            continue
        seen = facts.get("found")
        rows.append(
            {
                "": name,
                "s": f"{seconds:.3g}",
                "of the limit": f"{limit / seconds:.1%}" if limit else "",
                "patchworks / this": f"{min(peers) / seconds:.1f}" if peers else "",
                "known cells found": "" if seen is None else f"{seen} of {cells}",
                "others": "" if seen is None else facts["labels"] - seen,
                "GPU busy": f"{facts['gpu_busy']:.0%}" if facts.get("gpu_busy") else "",
            }
        )
    if rows:
        print_table(f"{found.get('world', {}).get('side')} pixels a side", rows)


def _rows(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    flow, small = found.get("flow", {}), found.get("flow small", {})
    network = found.get("network", {})
    rows: list[tuple[str, dict[str, Any]]] = []
    if "seconds" in flow:
        rows.append(("whole flow, with start-up", {"seconds": flow["process_s"]}))
    if "seconds" in flow and "seconds" in small:
        net = flow["seconds"] - small["seconds"]
        rows.append(("whole flow, net of start-up", {**flow, "seconds": net}))
    warm = found.get("warm", {})
    if "seconds" in warm:
        rows.append(("whole flow, workers that are warm", warm))
        fixed = warm["fixed"]["seconds"]
        rows.append(("the same of a small image: what any run takes", {"seconds": fixed}))
        net = warm["seconds"] - fixed
        rows.append(("whole flow without what any run takes", {**warm, "seconds": net}))
    rows += [
        (f"our loop, {name}", facts)
        for name, facts in found.get("loop", {}).items()
        if isinstance(facts, dict) and "seconds" in facts
    ]
    rows += [(k, v) for k, v in found.items() if k.startswith("patchworks")]
    rows.append(("stock eval, tile by tile", found.get("stock", {})))
    rows += [(f"network alone, {k}", {"seconds": v}) for k, v in network.get("all_s", {}).items()]
    rows.append(("limit of the arithmetic", {"seconds": network.get("limit_s")}))
    return rows


if __name__ == "__main__":
    main()
