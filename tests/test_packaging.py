"""The package list, which setuptools cannot find by itself, and the layout that it promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("flows", "tasks", "engine", "blocks", "deployments")


def test_every_package_is_listed_and_typed() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {p.parent for f in FOLDERS for p in (ROOT / f).rglob("__init__.py")}
    expected = {
        "cytopave." + ".".join(p.relative_to(ROOT).parts): str(p.relative_to(ROOT)) for p in found
    }
    assert config["package-dir"] == expected
    assert sorted(config["packages"]) == sorted(expected)
    assert all((ROOT / f / "py.typed").exists() for f in FOLDERS)


def test_no_lock_names_an_address() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in lock.read_text(), lock.name
