"""Which images Cellpose takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cytopave.engine.errors import SegmenterError

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters.cellpose_weights import Generation


def check_axes(image: Image, *, volume: bool, stitch: bool = False) -> None:
    """Refuse stacks where nothing says how, and planes in three dimensions.

    Args:
        image: The image.
        volume: Whether it is segmented in three dimensions.
        stitch: Whether planes are segmented one by one, and sections joined.

    Raises:
        SegmenterError: These do not go together.
    """
    planes = dict(zip(image.spatial_axes, image.spatial_shape, strict=True)).get("z", 1)
    if planes > 1 and not (volume or stitch):
        raise SegmenterError(
            f"the image is a stack of {planes} planes: segment it in three dimensions with "
            "do_3D=True, or plane by plane with stitch=True"
        )
    if planes == 1 and volume:
        raise SegmenterError(
            "do_3D=True needs a stack and the image has one plane: leave do_3D out"
        )


def check_channels(selected: int, generation: Generation) -> None:
    """Refuse more channels than a network of this generation takes.

    Raises:
        SegmenterError: There are too many.
    """
    most = 3 if generation == 4 else 2
    if selected > most:
        raise SegmenterError(
            f"Cellpose {generation} takes at most {most} channels and {selected} are selected: "
            "name those to segment (--channels)"
        )
