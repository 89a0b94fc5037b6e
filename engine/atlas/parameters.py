"""What an atlas run does: two profiles, whose steps are pydantic models.

Names and defaults are scanpy's where scanpy has the step; where a default differs, its description
says so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Bounds = tuple[float | None, float | None]
"""Smallest and largest value that is kept; None: no limit."""


class Quality(_Step):
    """Quality metrics of cells and genes, in one pass over the matrix."""

    marks: dict[str, list[str]] = Field(
        default={"mt": ["MT-*", "mt-*"]},
        description="Groups of genes whose share of a cell's counts is of interest: name patterns.",
    )


class KeepCells(_Step):
    """Which cells and columns of X stay."""

    columns: dict[str, Bounds] = Field(
        default={}, description="Limits of columns of obs, such as area or pct_counts_mt."
    )
    exclude: list[str] = Field(
        default=[], description="Columns of obs that are true where a cell is left out."
    )
    features: list[str] | None = Field(
        default=None, description="Patterns of the names of genes or intensities; None: all."
    )


class Keep(KeepCells):
    """Which cells and genes stay; both masks come from the metrics of all cells."""

    min_genes: int = Field(default=200, ge=0, description="Genes found in a cell.")
    max_genes: int | None = Field(default=None, ge=0, description="Genes found in a cell.")
    min_counts: float = Field(default=0, ge=0, description="Counts of a cell.")
    max_counts: float | None = Field(default=None, ge=0, description="Counts of a cell.")
    min_cells: int = Field(default=3, ge=0, description="Cells that a gene is found in.")


class Normalize(_Step):
    """Counts of every cell scaled to one sum, then log(1 + x)."""

    target_sum: PositiveFloat | None = Field(
        default=1e4, description="The sum; None: the median of the cells (scanpy's default)."
    )


class Variable(_Step):
    """Highly variable genes: what the PCA sees."""

    n_top: PositiveInt = Field(default=2000, description="How many.")
    flavor: Literal["seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper"] = "seurat"
    batch_key: str | None = Field(default=None, description="Column of obs: chosen within each.")


class Regress(_Step):
    """Numeric columns of obs whose linear effect is taken out of the variable genes."""

    keys: list[str] = Field(min_length=1)


class Scale(_Step):
    """Unit variance of every gene or intensity."""

    zero_center: bool = Field(
        default=True, description="Also zero mean, which makes a sparse matrix a dense one."
    )
    max_value: PositiveFloat | None = Field(default=10.0, description="Clip beyond it.")


class Pca(_Step):
    """Principal components, by the eigenvectors of the covariance matrix."""

    n_comps: PositiveInt | None = Field(
        default=None, description="How many; None: 50, or as many as there are."
    )


class Neighbors(_Step):
    """The graph of nearest neighbours in the space of the principal components."""

    n_neighbors: int = Field(default=15, ge=2)
    n_pcs: PositiveInt | None = Field(default=None, description="Components used; None: all.")
    metric: Literal["euclidean", "cosine", "manhattan"] = "euclidean"
    algorithm: Literal["auto", "exact", "approximate"] = Field(
        default="auto", description="auto: as the provider does by the number of cells."
    )


class Umap(_Step):
    """An embedding in two dimensions, for looking at."""

    min_dist: float = Field(default=0.5, ge=0)
    spread: PositiveFloat = 1.0


class Leiden(_Step):
    """Clusters of the graph."""

    resolution: PositiveFloat = 1.0
    n_iterations: int = Field(
        default=2, description="-1: until nothing changes, as cuGraph always does."
    )
    key: str = Field(default="leiden", description="Column of obs that gets the clusters.")


class Rank(_Step):
    """Genes that tell the groups of cells apart, by Welch's t-test against all other cells."""

    by: str | None = Field(default=None, description="Column of obs; None: the clusters.")
    n_genes: PositiveInt = 100


class Aggregate(_Step):
    """The matrix summed up by groups of cells."""

    by: str | None = Field(default=None, description="Column of obs; None: the clusters.")
    of: Literal["normalized", "counts"] = "normalized"
    functions: list[Literal["mean", "sum", "count_nonzero"]] = ["mean"]


class _Profile(_Step):
    """Steps that both profiles have."""

    keep: KeepCells = KeepCells()
    pca: Pca = Pca()
    neighbors: Neighbors | None = Neighbors()
    umap: Umap | None = Umap()
    leiden: Leiden | None = Leiden()
    rank: Rank | None = None
    aggregate: Aggregate | None = None
    seed: int = Field(default=0, ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.neighbors is None and (self.umap or self.leiden):
            raise ValueError(
                "UMAP and Leiden work on the graph of neighbours: leave the step neighbors in, or "
                "set umap and leiden to null as well"
            )
        for name in ("rank", "aggregate"):
            step: Rank | Aggregate | None = getattr(self, name)
            if step and step.by is None and self.leiden is None:
                raise ValueError(
                    f"{name}.by has to name a column where the step leiden is left out"
                )
        return self


class Counts(_Profile):
    """Counts of transcripts: cells by genes, mostly zeros."""

    kind: Literal["counts"] = "counts"
    quality: Quality = Quality()
    keep: Keep = Keep()
    normalize: Normalize = Normalize()
    variable: Variable = Variable()
    regress: Regress | None = None
    scale: Scale | None = Field(default=None, description="Off: the PCA centres by itself.")
    scores: dict[str, list[str]] = Field(
        default={}, description="Gene sets whose score becomes a column of obs of that name."
    )
    matrix: Literal["normalized", "counts", "both", "none"] = Field(
        default="normalized",
        description="What the output's X is; both: counts in layers/counts as well.",
    )


class Intensities(_Profile):
    """Intensities of segmented cells: few columns, dense, none of the steps for counts."""

    kind: Literal["intensities"] = "intensities"
    transform: Literal["none", "log1p", "arcsinh"] = "log1p"
    cofactor: PositiveFloat = Field(default=5.0, description="What arcsinh divides by before.")
    scale: Scale | None = Scale()


Profile = Annotated[Counts | Intensities, Field(discriminator="kind")]


def facts(step: BaseModel | None) -> Any:
    """JSON values of a step, for digests and provenance."""
    return None if step is None else step.model_dump(mode="json")
