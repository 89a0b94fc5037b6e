from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cytopave.engine.errors import MissingExtraError, SegmenterError
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.cellpose_adapter import build

needs_4 = pytest.mark.skipif(
    weights.installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model folder."""
    monkeypatch.setenv("CELLPOSE_LOCAL_MODELS_PATH", str(tmp_path))
    return tmp_path


@needs_4
def test_the_bundled_network_is_what_its_page_says() -> None:
    network = weights.inspect(weights.find("nuclei-tiny"))
    assert network.sha256 == "2ade130f0990d46f149bc76d63f3a852927d87d61d42dae0fc860c3114e77545"
    assert network.generation == 4
    assert round(network.parameters, -4) == 1_680_000
    assert network.encoder == weights.Encoder(
        depth=5,
        embed_dim=160,
        num_heads=5,
        mlp_ratio=3,
        out_chans=96,
        window_size=0,
        global_attn_indexes=(0, 1, 2, 3, 4),
    )


@needs_4
def test_the_encoder_that_cellpose_builds_by_itself_is_recognised() -> None:
    from cellpose.vit import CPSAM

    with torch.device("meta"):
        tensors = CPSAM().state_dict()
    assert weights._encoder(tensors) == weights.VIT_L
    assert sum(t.numel() for t in tensors.values()) == weights.VIT_L_PARAMETERS


@needs_4
def test_a_name_means_the_file_in_the_model_folder(folder: Path) -> None:
    for name in ("cpsam_v2", "my_own"):
        shutil.copy(weights.find("nuclei-tiny"), folder / name)
        assert weights.find(name) == folder / name


def test_a_path_means_that_file_from_any_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.pt").write_bytes(b"")
    monkeypatch.chdir(folder)
    assert weights.find("mine.pt") == folder / "mine.pt"
    assert weights.find("./mine.pt").is_absolute()


@needs_4
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("cpsam", r"not on this machine.*python -c \"from cellpose.models import cache_model_path"),
        ("cyto3", r"a model of Cellpose 3.*cytopave\[cellpose3\]"),
        ("cpdino", "built on DINOv3"),
        ("cpsamm", "knows no model 'cpsamm': take one of nuclei-tiny, cpsam_v2,.* cpsam, own, or"),
        ("folder/cpsam", "there is no model file 'folder/cpsam'"),
        ("cpsam.pt", "there is no model file 'cpsam.pt'"),
    ],
)
def test_what_is_not_there_is_never_replaced(folder: Path, model: str, message: str) -> None:
    (folder / "own").write_bytes(b"")
    with pytest.raises(SegmenterError, match=message):
        weights.find(model)
    assert [p.name for p in folder.iterdir()] == ["own"]


def test_without_cellpose(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r'pip install "cytopave\[cellpose\]"'):
        weights.find("cpsam_v2")


@pytest.mark.parametrize(("version", "generation"), [("4.2.1.1", 4), ("4.10", 4), ("3.1.1.3", 3)])
def test_supported_versions(version: str, generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    assert weights.installed() == (version, generation)


@pytest.mark.parametrize("version", ["2.2.3", "3.0.8", "4.0.6", "5.0"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(SegmenterError, match=f"Cellpose {version} is not supported"):
        weights.installed()


OTHER: dict[int, dict[str, Any]] = {
    4: {"output.2.weight": torch.zeros(3, 32, 1, 1)},
    3: {"W2": torch.zeros(192, 3, 8, 8)},
}


def test_weights_of_the_other_cellpose_are_refused(tmp_path: Path) -> None:
    torch.save(OTHER[weights.installed()[1]], tmp_path / "other")
    with pytest.raises(SegmenterError, match=r"is a network of Cellpose \d and Cellpose \d.*pip"):
        weights.inspect(tmp_path / "other")


@pytest.mark.parametrize("content", [{"weight": torch.zeros(3)}, {"epoch": 7}, [1, 2]])
def test_a_file_without_a_network_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "model")
    with pytest.raises(SegmenterError, match=r"no Cellpose network|is not a Cellpose model file"):
        weights.inspect(tmp_path / "model")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = Path(weights.__file__).parent / "models" / "nuclei_tiny_cp4.pt"
    (tmp_path / "half").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(SegmenterError, match="is not a Cellpose model file"):
        weights.inspect(tmp_path / "half")


@needs_4
def test_a_file_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    tensors = torch.load(weights.find("nuclei-tiny"), weights_only=True)
    del tensors["encoder.blocks.3.attn.qkv.weight"]
    torch.save(tensors, tmp_path / "hole")
    network = weights.inspect(tmp_path / "hole")
    with pytest.raises(SegmenterError, match="lacks 1 of the network's tensors"):
        build(tmp_path / "hole", network, device="cpu", bfloat16=True)
