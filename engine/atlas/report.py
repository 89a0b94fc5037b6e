"""What an atlas run did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from cytopave.engine.report import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.atlas.plan import AtlasPlan


class AtlasReport(BaseModel):
    """The result of ``preprocess_atlas``.

    Attributes:
        store: The input.
        output: Where the results are.
        in_place: Whether they are columns of the input.
        provider: The library that did the analysis.
        resident: Whether X stayed on the workers' GPUs once it was read.
        n_cells: Cells that were kept.
        n_genes: Genes or intensities that were kept.
        n_cells_read: Cells of the input.
        n_genes_read: Genes or intensities of the input.
        n_variable: Highly variable genes; None for intensities.
        n_comps: Principal components.
        n_clusters: Clusters; None where that step was left out.
        reused: Steps that an earlier attempt had finished.
        digest: The run's digest.
        stages: What was done and how long it took.
    """

    model_config = ConfigDict(frozen=True)

    store: str
    output: str
    in_place: bool
    provider: str
    resident: bool
    n_cells: int
    n_genes: int
    n_cells_read: int
    n_genes_read: int
    n_variable: int | None
    n_comps: int
    n_clusters: int | None
    reused: list[str]
    digest: str
    stages: list[Stage]

    @classmethod
    def of(
        cls,
        plan: AtlasPlan,
        facts: Mapping[str, Mapping[str, Any]],
        reused: list[str],
        stages: list[Stage],
    ) -> Self:
        """The report of a run.

        Args:
            plan: The run.
            facts: What each step returned.
            reused: Steps that were there.
            stages: Times.
        """
        return cls(
            store=plan.store.url,
            output=str(plan.target.path),
            in_place=plan.target.in_place,
            provider=plan.provider,
            resident=plan.resident,
            n_cells=facts["keep"]["n_cells"],
            n_genes=facts["keep"]["n_genes"],
            n_cells_read=plan.store.n_cells,
            n_genes_read=plan.store.n_genes,
            n_variable=facts.get("variable", {}).get("n_variable"),
            n_comps=facts["pca"]["n_comps"],
            n_clusters=facts.get("leiden", {}).get("n_clusters"),
            reused=reused,
            digest=plan.digest,
            stages=stages,
        )

    def stage_rows(self) -> list[dict[str, object]]:
        """The stages as a table."""
        return [
            {
                "stage": s.name,
                "seconds": round(s.seconds, 2),
                "done": "before" if s.name in self.reused else "",
            }
            for s in self.stages
        ]
