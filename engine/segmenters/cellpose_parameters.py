"""The parameters of Cellpose: those that its users know, and where and how it computes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from cytopave.engine.segmenters import cellpose_weights as weights  # noqa: TC001 - for pydantic
from cytopave.engine.segmenters.base import SegmenterBase
from cytopave.engine.segmenters.intensities import (  # noqa: TC001 - for pydantic
    Finite,
    Percentiles,
    Ranges,
)


class CellposeParameters(SegmenterBase):
    """Everything that can be asked for, checked as far as it can be without an image."""

    kind: Literal["cellpose"] = "cellpose"
    model: Annotated[
        str,
        Field(
            min_length=1,
            description="Name of a Cellpose model that is in its model folder, path of a model "
            "file, or 'nuclei-tiny': a small network for demos and tests that ships with cytopave.",
        ),
    ] = "cpsam_v2"
    diameter: Annotated[
        PositiveFloat | None,
        Field(
            description="Object diameter in pixels; the image is scaled by it. Empty: no scaling "
            "with Cellpose 4, the model's own diameter with Cellpose 3. Never guessed per tile."
        ),
    ] = None
    flow_threshold: Annotated[
        NonNegativeFloat,
        Field(description="Largest error of an object's flows; 0 skips the check (and is faster)."),
    ] = 0.4
    cellprob_threshold: Annotated[
        Finite, Field(description="Lower it to find more and larger objects.")
    ] = 0.0
    min_size: Annotated[
        NonNegativeInt, Field(description="Objects of fewer pixels are dropped.")
    ] = 15
    niter: Annotated[
        PositiveInt | None,
        Field(description="Steps along the flows. Empty: 200 times the scaling by the diameter."),
    ] = None
    batch_size: Annotated[
        PositiveInt | None,
        Field(
            description="Patches that the network evaluates at a time on a GPU. Empty: 32 on the "
            "fast path, 8 on the stock path."
        ),
    ] = None
    percentiles: Annotated[
        Percentiles,
        Field(description="Percentiles of the whole image that become 0 and 1."),
    ] = (1.0, 99.0)
    intensity: Annotated[
        Ranges | None,
        Field(
            description="What becomes 0 and 1, per selected channel. Empty: the percentiles of the "
            "whole image, taken once."
        ),
    ] = None
    do_3D: Annotated[bool, Field(description="Segment a stack from flows in three dimensions.")] = (
        False
    )
    stitch: Annotated[
        bool,
        Field(
            description="Segment each plane of a stack by itself; the merge joins sections that "
            "match. min_size is then that of a section."
        ),
    ] = False
    anisotropy: Annotated[
        PositiveFloat | None,
        Field(description="Distance of planes in pixels, for do_3D. Empty: from the voxel size."),
    ] = None
    flow3D_smooth: Annotated[
        tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat],
        Field(
            description="Standard deviation in pixels (Z, Y, X) by which 3-D flows are smoothed."
        ),
    ] = (0.0, 0.0, 0.0)
    use_bfloat16: Annotated[
        bool | None,
        Field(
            description="Compute in 16 bits: half the memory. Cellpose 4 only. Empty: on GPUs, and "
            "not on CPUs, most of which are slow at it."
        ),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(
            description="'auto' is a GPU where the worker's PyTorch sees one, else the CPU. 'cuda' "
            "makes a worker without a GPU an error."
        ),
    ] = "auto"
    path: Annotated[
        Literal["auto", "fast", "stock"],
        Field(
            description="'fast' evaluates patches on one grid for the whole image, so that tiles "
            "agree, and stays on the GPU; for networks of Cellpose 4. 'stock' "
            "evaluates each tile through Cellpose's own classes. 'auto' is fast where that applies."
        ),
    ] = "auto"
    compile_network: Annotated[
        bool,
        Field(
            description="Compile the network of the fast path on a GPU: a minute at the start "
            "of each worker, for networks that our own kernels do not make as fast without."
        ),
    ] = False
    sha256: Annotated[
        str | None,
        Field(
            pattern="^[0-9a-f]{64}$",
            description="Hash of the weights. Given: the file must have it. Filled in otherwise.",
        ),
    ] = None
    network: Annotated[
        weights.Network | None,
        Field(json_schema_extra={"readOnly": True}, description="Filled in from the weights."),
    ] = None

    @field_validator("flow3D_smooth", mode="before")
    @classmethod
    def _for_each_axis(cls, value: Any) -> Any:
        return (value,) * 3 if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.do_3D and self.stitch:
            raise ValueError("do_3D and stitch are two ways to segment a stack: choose one of them")
        return self
