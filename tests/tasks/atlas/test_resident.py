"""X that stays with the workers once it was read: the same results, from one pass over the store.

The way is that of GPUs, taken with blocks in the host's memory; kernels of GPUs that write into
their block have a double.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("scanpy")

import anndata
from atlas_steps import plan_of, threads
from atlases import annotated, make_atlas, simulate, write_atlas
from scipy import sparse

from cytopave.engine.atlas import kept
from cytopave.engine.atlas.parameters import Aggregate, Counts, Keep, Pca, Rank, Variable
from cytopave.engine.atlas.plan import RAW
from cytopave.engine.atlas.providers.rapids import Rapids
from cytopave.engine.atlas.providers.scanpy import Scanpy
from cytopave.engine.atlas.store import AtlasStore
from cytopave.engine.errors import AtlasError
from cytopave.tasks.atlas import session as sessions
from cytopave.tasks.atlas.session import PREFIX, Session, dataset_name
from cytopave.tasks.atlas.steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import distributed

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT: dict[str, Any] = {"neighbors": None, "umap": None, "leiden": None, "matrix": "none"}
PROFILE = Counts(
    keep=Keep(min_genes=33, min_cells=60), variable=Variable(n_top=40), pca=Pca(n_comps=6), **SHORT
)
EVERYTHING = PROFILE.model_copy(update={"keep": Keep(min_genes=0, min_cells=0)})
ROWS, BLOCKS = 90, 5


class Double(Scanpy):
    """scanpy's steps, but for those in which the provider for GPUs takes care of its kernels."""

    def select(self, x: Any, genes: np.ndarray) -> Any:
        """Its own."""
        return Rapids().select(x, genes)

    def normalize(self, adata: Any, target_sum: float) -> None:
        """Its own, over the double of the library."""
        Rapids().normalize(adata, target_sum)


def normalize_total(adata: Any, *, target_sum: float) -> None:
    """Writes into the blocks that it is given, as the library's does; takes the logarithm too."""
    x = adata.X
    adata.X = x.map_blocks(written_into, target_sum, dtype=x.dtype, meta=x._meta)


def written_into(block: Any, target_sum: float) -> Any:
    block.data[:] = kept.log_normalized(block, target_sum).data
    return block


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double of rapids-singlecell."""
    steps = SimpleNamespace(normalize_total=normalize_total, log1p=lambda _: None)
    monkeypatch.setitem(sys.modules, "rapids_singlecell", SimpleNamespace(pp=steps))


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    with threads() as client:
        yield client


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 cells of which some are left out, in 5 blocks; nothing of the fourth is kept."""
    x, truth = simulate(400, 150)
    x = x.tolil()
    x[3 * ROWS : 4 * ROWS] = 0
    return write_atlas(tmp_path_factory.mktemp("store"), annotated(x.tocsr(), truth))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each block was read, by its first row; workers are threads of this process."""
    found: Counter[int] = Counter()
    read = AtlasStore.read

    def counted(self: AtlasStore, start: int, stop: int) -> Any:
        found[start] += 1
        return read(self, start, stop)

    monkeypatch.setattr(AtlasStore, "read", counted)
    return found


@contextmanager
def begun(
    client: distributed.Client,
    store: Path,
    scratch: Path,
    *,
    resident: bool,
    profile: Counts = PROFILE,
    **changes: Any,
) -> Iterator[Session]:
    """A session of a new run; at its end, what the workers keep goes."""
    plan = plan_of(store, profile, block_rows=ROWS, scratch=scratch)
    plan = plan.model_copy(update={"resident": resident} | changes)
    try:
        yield Session(plan, plan.save(), client)
    finally:
        for name in client.list_datasets():
            client.unpublish_dataset(name)


def take(session: Session, *steps: str) -> Session:
    for step in steps or session.plan.steps[:-1]:
        STEPS[step](session)
    return session


def results(session: Session) -> dict[str, Any]:
    read, key = session.results.read, session.plan.key
    found = {n: session.quality(n) for n in ("obs", "var")}
    found |= {n: getattr(session, n) for n in ("cells", "genes", "variable")}
    return found | {n: read(key("pca"), n) for n in ("scores", "loadings", "variance")}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in one.items():
        if hasattr(value, "equals"):
            assert value.equals(other[name]), name
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def values_of(client: distributed.Client, session: Session) -> Any:
    return client.get_dataset(dataset_name(session.plan, RAW)).compute()


def test_x_is_read_once_and_nothing_else_differs(
    tmp_path: Path, client: distributed.Client, store: Path, reads: Counter[int]
) -> None:
    with begun(client, store, tmp_path / "a", resident=False) as session:
        expected = results(take(session))
        passes = dict(reads)
        assert RAW not in "".join(client.list_datasets())
    reads.clear()
    with begun(client, store, tmp_path / "b", resident=True) as session:
        take(session, "quality")
        assert set(reads.values()) == {1}
        found = results(take(session, *session.plan.steps[1:-1]))
        # The matrix of variable genes is there; that of all genes has been let go.
        assert [*client.list_datasets()] == [dataset_name(session.plan, "subset")]
    assert not expected["cells"].all()
    assert not expected["cells"][3 * ROWS : 4 * ROWS].any()
    assert not expected["genes"].all()
    assert_same(found, expected)
    firsts = [ROWS * i for i in range(BLOCKS)]
    assert reads == dict.fromkeys(firsts, 1)
    # Metrics, variable genes, subset; what is left out whole, once; the first block is looked at.
    assert passes == {0: 4, ROWS: 3, 2 * ROWS: 3, 3 * ROWS: 1, 4 * ROWS: 3}


@pytest.mark.parametrize("profile", [PROFILE, EVERYTHING], ids=["some", "all"])
@pytest.mark.parametrize("provider", [Scanpy(), Double()], ids=["scanpy", "kernels of GPUs"])
def test_what_is_kept_stays_as_it_was_read(
    tmp_path: Path, client: distributed.Client, store: Path, provider: Any, profile: Counts
) -> None:
    """Where all cells and genes are kept, the steps get the kept blocks themselves."""
    x = anndata.read_zarr(store).X
    with begun(client, store, tmp_path, resident=True, profile=profile) as session:
        session.provider = provider
        take(session, "quality", "keep", "normalize")
        expected = kept.log_normalized(x[session.cells][:, session.genes], session.target_sum)
        for _ in range(3):
            assert (session.normalized().X.compute() != expected).nnz == 0
        take(session, "variable")
        assert (values_of(client, session) != x).nnz == 0


def test_kernels_without_the_copy_would_corrupt_it(
    tmp_path: Path, client: distributed.Client, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the test above can fail."""
    monkeypatch.setattr(Rapids, "guard", lambda _, x: x)
    with begun(client, store, tmp_path, resident=True, profile=EVERYTHING) as session:
        session.provider = Double()
        take(session, "quality", "keep", "normalize")
        session.normalized().X.compute()
        assert (values_of(client, session) != anndata.read_zarr(store).X).nnz > 0


def test_the_kernels_of_gpus_and_their_shares_of_rows_find_the_same(
    tmp_path: Path,
    client: distributed.Client,
    store: Path,
    reads: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "get_provider", lambda _: Double())
    found = []
    for resident in (False, True):
        reads.clear()
        with begun(
            client, store, tmp_path / str(resident), resident=resident, provider="rapids"
        ) as session:
            found.append(results(take(session)))
    assert_same(*found)
    assert set(reads.values()) == {1}


def test_it_stays_until_the_last_step_that_works_on_all_genes(
    tmp_path: Path, client: distributed.Client, store: Path, reads: Counter[int]
) -> None:
    profile = PROFILE.model_copy(
        update={"rank": Rank(by="truth", n_genes=5), "aggregate": Aggregate(by="truth")}
    )
    with begun(client, store, tmp_path, resident=True, profile=profile) as session:
        name = dataset_name(session.plan, RAW)
        take(session, "quality", "keep", "normalize", "variable", "subset", "pca")
        assert name in client.list_datasets()
        take(session, "rank")
        assert set(reads.values()) == {1}
        assert name not in client.list_datasets()


def test_a_run_that_continues_reads_it_again_and_keeps_it(
    tmp_path: Path, client: distributed.Client, store: Path, reads: Counter[int]
) -> None:
    """Also with blocks of another size, which are not those that others keep."""
    with begun(client, store, tmp_path / "a", resident=False, rows=70) as session:
        expected = results(take(session))
    with begun(client, store, tmp_path / "b", resident=False) as session:
        take(session, "quality", "keep", "normalize")
    reads.clear()
    with begun(client, store, tmp_path / "b", resident=True, rows=70) as session:
        assert_same(results(take(session, "variable", "subset", "pca")), expected)
        other = dataset_name(session.plan, RAW)
    assert reads == dict.fromkeys(range(0, 400, 70), 1)
    with begun(client, store, tmp_path / "b", resident=True) as session:
        assert dataset_name(session.plan, RAW) != other


def test_what_cannot_be_read_is_told_and_not_kept(
    tmp_path: Path, client: distributed.Client
) -> None:
    x, truth = simulate(200, 60)
    x.data[x.indptr[150]] = np.nan
    path = write_atlas(tmp_path, annotated(x, truth))
    with begun(client, path, tmp_path / "scratch", resident=True) as session:
        with pytest.raises(AtlasError, match=r"NaN or infinity \(row 150"):
            take(session, "quality")
        assert not [n for n in client.list_datasets() if n.startswith(PREFIX)]


def test_fractions_are_told_of(
    tmp_path: Path, client: distributed.Client, caplog: pytest.LogCaptureFixture
) -> None:
    atlas = make_atlas(tmp_path, 100, 60)
    halves = write_atlas(tmp_path, annotated(sparse.csr_matrix(atlas.adata.X / 2)), "halves.zarr")
    for path, told in ((atlas.path, False), (halves, True)):
        caplog.clear()
        with begun(client, path, tmp_path / "scratch", resident=True) as session:
            take(session, "quality")
        assert ("not whole numbers" in caplog.text) is told
