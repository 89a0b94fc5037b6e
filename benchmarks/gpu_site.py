"""Pack what a machine with a GPU and without a network lacks into one archive.

    python benchmarks/gpu_site.py segment|atlas|ucx OUT.txz [--wheels FOLDER]

Downloads the wheels that gpu_site.txt lists for that use, for x86-64 and Python 3.12, and packs
them unpacked, without tests, headers and web pages. There: ``tar -xJf OUT.txz -C FOLDER``, and
``FOLDER`` on ``PYTHONPATH``. An archive that is made of the same wheels is the same to the byte.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path, PurePosixPath

LIST = Path(__file__).with_suffix(".txt")
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
SOURCES = {"docrep"}  # have no wheel, and are Python only: built here
NOT_FOLDERS = {"tests", "include", "cmake", "__pycache__"}
NOT_ENDINGS = (".pyc", ".h", ".hpp", ".cuh", ".cu", ".pxd", ".pyx", ".pyi", ".map", ".a", ".cmake")
NOT_BEGINNINGS = ("rapids_singlecell_skills/", "prefect/server/ui")  # web pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("use", choices=("segment", "atlas", "ucx"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path, help="where wheels are kept for the next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.wheels or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wheels = fetch(listed(options.use), folder)
        files, size = pack(wheels, options.out)
    packed = f"{options.out.stat().st_size / 1e6:.1f} MB, {size / 1e6:.1f} MB unpacked"
    print(f"{options.out}: {len(wheels)} wheels, {files} files, {packed}")


def listed(use: str) -> list[str]:
    """Requirements of a use, ``name==version``."""
    lines = [line.split() for line in LIST.read_text().splitlines() if not line.startswith("#")]
    uses = {use} if use == "ucx" else {use, "both"}
    return [line[1] for line in lines if line and line[0] in uses]


def fetch(wanted: list[str], folder: Path) -> list[Path]:
    """The wheels of what is wanted; those in the folder are not downloaded again."""
    missing = [name for name in wanted if not _wheel(name, folder)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    target = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
    target += [f"--platform={p}" for p in PLATFORMS]
    ready = [name for name in missing if name.partition("==")[0] not in SOURCES]
    if ready:
        command = [*pip, "download", "-qq", "--no-deps", *target, "-d", str(folder), *ready]
        subprocess.run(command, check=True)
    for name in sorted(set(missing) - set(ready)):
        subprocess.run([*pip, "wheel", "-qq", "--no-deps", "-w", str(folder), name], check=True)
    found = [(name, _wheel(name, folder)) for name in wanted]
    if lost := [name for name, path in found if path is None]:
        sys.exit(f"no wheel for {', '.join(lost)}")
    return sorted(path for _, path in found if path is not None)


def _wheel(wanted: str, folder: Path) -> Path | None:
    name, _, version = wanted.partition("==")
    stem = f"{name.replace('-', '_')}-{version}-".lower()
    found = [
        p
        for p in folder.glob("*.whl")
        if p.name.replace(".", "_").lower().startswith(stem.replace(".", "_"))
    ]
    return found[0] if found else None


def pack(wheels: list[Path], out: Path) -> tuple[int, int]:
    """Write the archive; returns the number of files and their bytes."""
    contents: dict[str, bytes] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.namelist():
                if (place := _place(entry)) is not None:
                    contents[place] = archive.read(entry)
    out.parent.mkdir(parents=True, exist_ok=True)
    # By kind: what is alike lies together, and packs better.
    order = sorted(contents, key=lambda name: (PurePosixPath(name).suffix, name))
    with lzma.open(out, "wb", preset=3) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name in order:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(contents[name]), 0o644
            tar.addfile(info, BytesIO(contents[name]))
    return len(contents), sum(map(len, contents.values()))


def _place(entry: str) -> str | None:
    """Where a wheel's file goes; None: it is left out."""
    parts = PurePosixPath(entry).parts
    if len(parts) > 2 and parts[0].endswith(".data"):
        if parts[1] not in ("purelib", "platlib"):
            return None
        parts = parts[2:]
    place = "/".join(parts)
    unwanted = (
        entry.endswith("/")
        or bool(NOT_FOLDERS & set(parts[:-1]))
        or place.endswith(NOT_ENDINGS)
        or place.startswith(NOT_BEGINNINGS)
    )
    return None if unwanted else place


if __name__ == "__main__":
    main()
