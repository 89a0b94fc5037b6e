"""The blocks as Prefect finds them: by the command, by the entry point, and never by waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.plugins import load_prefect_collections
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL as DATABASE
from prefect.utilities.dispatch import get_registry_for_type

from cytopave import blocks
from cytopave.blocks import Cluster
from cytopave.blocks.saved import load_saved, may_be_saved
from cytopave.engine.errors import UserError

KINDS = (blocks.Cluster, blocks.ImageStore, blocks.CellposeModel)


def test_the_command_registers_them(prefect_api: str) -> None:
    program = str(Path(sys.executable).parent / "prefect")
    done = subprocess.run(
        [program, "block", "register", "-m", "cytopave.blocks"],
        env={**os.environ, "PREFECT_API_URL": prefect_api},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as client:
        for kind in KINDS:
            slug = kind.get_block_type_slug()
            response = client.request("GET", "/block_types/slug/{slug}", path_params={"slug": slug})
            assert response.json()["name"] == kind.get_block_type_name()
            schema = client.request(
                "POST",
                "/block_schemas/filter",
                json={"block_schemas": {"block_type_id": {"any_": [response.json()["id"]]}}},
            ).json()
            assert kind._calculate_schema_checksum() in {found["checksum"] for found in schema}


def test_the_entry_point_makes_them_known() -> None:
    found = load_prefect_collections()
    assert found["cytopave"] is blocks
    known = get_registry_for_type(Block) or {}
    assert set(KINDS) <= set(known.values())


def test_what_was_never_saved_is_answered_without_an_api(tmp_path: Path) -> None:
    """Also where there is no database yet, and where it is not what we take it for."""
    database = tmp_path / "prefect.db"
    address = f"sqlite+aiosqlite:///{database}"
    with temporary_settings({DATABASE: address}):
        assert not may_be_saved("ours")
        assert load_saved(Cluster, "ours") is None
        database.write_bytes(b"this is no database")
        assert may_be_saved("ours")
    with temporary_settings({DATABASE: "postgresql+asyncpg://host/prefect"}):
        assert may_be_saved("ours")


@pytest.mark.usefixtures("prefect_api")
def test_what_was_saved_without_an_api_is_found_in_its_database() -> None:
    Cluster(preset="cpu").save("without-api")
    assert may_be_saved("without-api")
    found = load_saved(Cluster, "without-api")
    assert found is not None
    assert found.preset == "cpu"
    assert not may_be_saved("nobodys")


def test_an_api_that_does_not_answer() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(
            UserError, match=r"'ours' cannot be looked up.*http://127\.0\.0\.1:9/api"
        ) as e,
    ):
        load_saved(Cluster, "ours")
    assert isinstance(e.value.__cause__, httpx.HTTPError)
