"""What a process frees stays with it: seen in page faults, which cannot lie."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, resource, sys
import numpy as np
from cytopave.engine.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def work():
    np.ones(2 << 20, np.uint8)
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc's allocator")
def test_freed_arrays_are_used_again() -> None:
    """Also where Dask has set the environment of its workers."""
    environment = {"MALLOC_TRIM_THRESHOLD_": "65536"}
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", SCRIPT, how],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for how in ("keep", "return")
    }
    pages = 50 * (2 << 20) // 4096
    assert faults["return"] >= pages
    assert faults["keep"] < pages // 50
