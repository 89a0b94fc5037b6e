"""An atlas run with nothing left to decide, and the names of its steps' results."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from cytopave.engine.atlas import blocks
from cytopave.engine.atlas.parameters import Counts, Intensities, Profile, facts
from cytopave.engine.atlas.results import Results
from cytopave.engine.atlas.store import AtlasStore
from cytopave.engine.atlas.target import AtlasTarget
from cytopave.engine.scratch.saved import Saved

ProviderName = Literal["scanpy", "rapids"]

# Raise it whenever results of steps made by an earlier version must not be used again.
CODE_VERSION = 1

IN_MEMORY = ("subset", "regress", "scale")
"""Steps whose result is a matrix that stays with the workers; the PCA is what needs it."""

RAW = "raw"
"""All of X as it was read. It is no step's, but workers may keep it too (`AtlasPlan.resident`)."""


class AtlasPlan(Saved):
    """A run with nothing left to decide; workers read it from the run's scratch folder.

    Attributes:
        store: The matrix.
        content: Fingerprint of the store.
        profile: Every step with its parameters.
        provider: The library that does the analysis.
        rows: Rows of a block.
        unique_names: Whether names that come twice get numbers.
        worker_bytes: Memory of the smallest worker.
        target: Where the results go.
        resident: Whether the workers' GPUs keep X once it is read. No result depends on it.
    """

    store: AtlasStore
    content: str
    profile: Profile
    provider: ProviderName
    rows: int
    unique_names: bool
    worker_bytes: int
    target: AtlasTarget
    resident: bool = False

    @property
    def results(self) -> Results:
        """The steps' folders."""
        return Results(self.root)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First row, and row after the last, of every block."""
        return blocks.bounds(self.store.n_cells, self.rows)

    @property
    def counts(self) -> Counts | None:
        """The profile, where it is that of counts."""
        return self.profile if isinstance(self.profile, Counts) else None

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps that this run takes, in order; `write` is the last."""
        counts = self.counts
        wanted = {
            "quality": counts,
            "keep": True,
            "normalize": counts,
            "variable": counts,
            "subset": True,
            "regress": counts and counts.regress,
            "scale": self.profile.scale,
            "pca": True,
            "neighbors": self.profile.neighbors,
            "umap": self.profile.umap,
            "leiden": self.profile.leiden,
            "scores": counts and counts.scores,
            "rank": self.profile.rank,
            "aggregate": self.profile.aggregate,
            "write": True,
        }
        return tuple(name for name, step in wanted.items() if step)

    @property
    def x_bytes(self) -> int:
        """What X takes as CSR."""
        return blocks.csr_bytes(self.store.n_cells, self.store.nnz)

    def key(self, step: str) -> str:
        """Name of a step's results, or of `RAW`: with a digest of all that they depend on."""
        return f"{step}-{self._digest(step)[:16]}"

    def _digest(self, step: str) -> str:
        text = json.dumps(self._inputs(step), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _inputs(self, step: str) -> list[Any]:
        """What a step depends on: earlier steps by their digest, and its own parameters."""
        profile, counts = self.profile, self.counts
        start = [CODE_VERSION, self.content, self.unique_names, self.provider, profile.kind]
        if step == RAW:
            return [*start, self.rows]
        if step == "quality":
            return [*start, facts(counts and counts.quality)]
        if step == "keep":
            before = self._digest("quality") if counts else start
            return [before, facts(profile.keep)]
        if step == "normalize":
            return [self._digest("keep"), facts(counts and counts.normalize)]
        if step == "variable":
            return [self._digest("normalize"), facts(counts and counts.variable)]
        if step == "subset":
            if counts:
                return [self._digest("variable")]
            assert isinstance(profile, Intensities)
            return [self._digest("keep"), profile.transform, profile.cofactor]
        if step == "regress":
            return [self._digest("subset"), facts(counts and counts.regress)]
        if step == "scale":
            return [self._digest("regress"), facts(profile.scale)]
        if step == "pca":
            return [self._digest("scale"), facts(profile.pca), profile.seed]
        if step == "neighbors":
            return [self._digest("pca"), facts(profile.neighbors), profile.seed]
        if step in ("umap", "leiden"):
            return [self._digest("neighbors"), facts(getattr(profile, step)), profile.seed]
        values = self._digest("normalize" if counts else "subset")
        if step == "scores":
            return [values, counts and counts.scores, profile.seed]
        if step in ("rank", "aggregate"):
            groups = self._digest("leiden") if profile.leiden else ""
            return [values, groups, facts(getattr(profile, step))]
        return [self._digest(name) for name in self.steps if name != "write"]

    @property
    def digest(self) -> str:
        """Names the whole result."""
        return self._digest("write")
