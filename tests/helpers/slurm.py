"""A host that takes jobs for SLURM: the commands do on this host what SLURM does on others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SBATCH = """#!/usr/bin/env bash
cp "$1" "$SLURM_AT/job-$$"
setsid bash "$SLURM_AT/job-$$" >"$SLURM_AT/output-$$" 2>&1 &
# Only a job that leads its group can be cancelled.
while kill -0 $! 2>/dev/null && ! kill -0 -- -$! 2>/dev/null; do sleep 0.01; done
echo "Submitted batch job $!"
"""
_REFUSES = """#!/usr/bin/env bash
echo "sbatch: error: invalid partition specified: gpu" >&2
exit 1
"""
_SCANCEL = """#!/usr/bin/env bash
echo "$1" >>"$SLURM_AT/cancelled"
kill -- -"$1"
"""


class Slurm:
    """The commands, and what they were told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, takes: bool) -> None:
        self.folder = folder
        bin_ = folder / "bin"
        bin_.mkdir(parents=True)
        for name, text in (("sbatch", _SBATCH if takes else _REFUSES), ("scancel", _SCANCEL)):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        monkeypatch.setenv("SLURM_AT", str(folder))
        monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")

    def jobs(self) -> list[str]:
        """The scripts that were submitted."""
        return [path.read_text() for path in sorted(self.folder.glob("job-*"))]

    def cancelled(self) -> list[str]:
        path = self.folder / "cancelled"
        return path.read_text().split() if path.exists() else []
