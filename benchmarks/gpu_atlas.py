"""The atlas flow on a machine with NVIDIA GPUs: what the card is needed to show, in one run.

    python benchmarks/gpu_atlas.py OUT.json [--folder FOLDER] [--seconds 360]
    python benchmarks/gpu_atlas.py OUT.json --provider scanpy --cells 20000 --cluster cpu

Parts, each a process of its own, so that what one breaks the next does not have: simulated atlases;
scanpy in memory; the flow's steps from the metrics to the components by the provider, and by scanpy
on all cores; the provider against both; the traps that the provider avoids; two cards. RAPIDS'
graph libraries are stand-ins (rapids_site), which the record says. The second line is how all of it
is debugged without a card. The file is written after each part; what matters is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import unpacked  # noqa: F401 - before cytopave

HERE = Path(__file__).resolve().parent
PARTS = {  # and the seconds that each may take at most
    "versions": 60,
    "data": 120,
    "provider": 180,
    "traps": 90,
    "in_memory": 120,
    "cpus": 150,
    "agreement": 40,
    "threads": 90,
    "two_cards": 150,
    "graph": 10,
}


def main() -> None:
    """Run the parts that are asked for, or be one (``--part``), which writes its own result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/gpu-atlas"))
    parser.add_argument("--provider", choices=("rapids", "scanpy"), default="rapids")
    parser.add_argument("--cluster", choices=("nvlink", "cpu"), default="nvlink")
    parser.add_argument("--cells", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=360, help="no part begins after it")
    parser.add_argument(
        "--each-pass", action="store_true", help="the largest also with X read anew by every step"
    )
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    parser.add_argument("--part", choices=tuple(PARTS), help="in this process: what a part is")
    options = parser.parse_args()
    if options.part:
        import gpu_atlas_parts

        found = getattr(gpu_atlas_parts, options.part)(gpu_atlas_parts.Setup.of(options))
        options.out.write_text(json.dumps(found))
        return
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    began = time.perf_counter()
    results: dict[str, Any] = {"when": time.strftime("%Y-%m-%d %H:%M:%S"), "argv": sys.argv[1:]}
    for part, limit in PARTS.items():
        if part not in options.parts:
            continue
        left = options.seconds - (time.perf_counter() - began)
        since = time.perf_counter()
        if left < 10:
            results[part] = {"error": "not run: the time was over"}
        else:
            slower = max(1, options.seconds / 360)  # a machine that is given more time
            results[part] = run(part, options.folder, min(limit * slower, left + 30))
        results[part]["wall_s"] = round(time.perf_counter() - since, 1)
        show(part, results[part])
        options.out.write_text(json.dumps(results, indent=1))
    print(f"all: {time.perf_counter() - began:.0f} s")


def run(part: str, folder: Path, limit: float) -> dict[str, Any]:
    """One part in a process of its own; its log is beside its result."""
    out, log = folder / f"{part}.json", folder / f"{part}.log"
    command = [sys.executable, __file__, str(out), *sys.argv[2:], "--part", part]
    if "--folder" not in command:
        command += ["--folder", str(folder)]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env=_environment(folder), start_new_session=True
        )
        try:
            code: int | str = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = f"more than {limit:.0f} s"
            os.killpg(process.pid, 15)
            time.sleep(2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    if out.exists():
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    lines = [line[:160] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return {"error": f"ended with {code}", "log": lines[-12:]}


def _environment(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("CYTOPAVE_")}
    paths = [str(HERE / "rapids_site"), str(HERE), env.get("PYTHONPATH", "")]
    return env | {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def show(part: str, found: dict[str, Any]) -> None:
    """Print a part: a line for each figure, or for each line of what went wrong."""
    print(f"## {part} ({found['wall_s']} s)")
    for name, value in found.items():
        if name == "log":
            print("\n".join(f"  | {line}" for line in value))
        elif name != "wall_s":
            print(f"  {name}: {_short(value)}")
    sys.stdout.flush()


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
