"""How benchmarks print: where they ran, and tables in Markdown."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OURS = ("cytopave", "prefect", "prefect-dask", "dask", "zarr", "numpy", "scipy")


def machine(peers: Path | None = None, *packages: str) -> str:
    """Date, hardware, load and versions, one line each; ``packages`` are those of the peers."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{v:.1f}" for v in os.getloadavg())
    own = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in _OURS)
    lines = [
        f"- {datetime.date.today()}, {os.cpu_count()} cores of {model}, {memory:.0f} GiB",
        f"- load {load} when it began",
        f"- Python {platform.python_version()}, {own}",
    ]
    if peers is not None and packages:
        lines.append(f"- peers: {_versions(peers, packages)}")
    return "\n".join(lines)


def _versions(python: Path, packages: Sequence[str]) -> str:
    code = (
        "import importlib.metadata as m, sys\n"
        "print(', '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    )
    if not python.exists():
        sys.exit(f"{python} is not there: run `make peers` first")
    done = subprocess.run(
        [str(python), "-c", code, *packages], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print one Markdown table; the keys of the first row are its head."""
    head = list(rows[0])
    print(f"\n**{title}**\n")
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(row[k]) for k in head) + " |")
    sys.stdout.flush()
