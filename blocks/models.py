"""Networks that a site trusts: the ``CellposeModel`` block, which ``model://name`` refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, PositiveFloat

from cytopave.blocks.saved import load_saved
from cytopave.engine.errors import SegmenterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.segmenters import Segmenter

SCHEME: Final = "model://"


class CellposeModel(Block):
    """A network for Cellpose, and how it is meant to be used.

    Saved as ``nuclei``, it is ``model://nuclei`` wherever a Cellpose model is asked for.
    """

    _block_type_name = "cytopave Cellpose model"
    _block_type_slug = "cytopave-cellpose-model"
    _description = "A network for Cellpose: its file, what it is sure to hold, and its use."

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        min_length=1,
        description="Path of the file, which all workers see, or the name of a model in "
        "Cellpose's model folder.",
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="Hash that the file must have (sha256sum FILE). Not checked where not set.",
    )
    diameter: PositiveFloat | None = Field(
        default=None,
        description="Diameter of the objects in pixels, for runs that do not say another.",
    )
    channels: list[int | str] | None = Field(
        default=None,
        description="Channels by number or name, in the network's order, for runs that do not say "
        "others.",
    )


def with_saved_model(
    segmenter: Segmenter, channels: Sequence[int | str] | None
) -> tuple[Segmenter, Sequence[int | str] | None]:
    """The segmenter and the channels, as a saved model says where they name one.

    What a run says itself counts more, except for the hash: the two must then be equal.

    Raises:
        SegmenterError: There is no such model, or its file is to have two hashes.
        UserError: The API does not answer.
    """
    if segmenter.kind != "cellpose" or not segmenter.model.startswith(SCHEME):
        return segmenter, channels
    name = segmenter.model.removeprefix(SCHEME)
    block = load_saved(CellposeModel, name)
    if block is None:
        raise SegmenterError(
            f"there is no saved model {name!r}: save a 'cytopave Cellpose model' block of that "
            "name, or give a file or one of Cellpose's names"
        )
    if None not in (segmenter.sha256, block.sha256) and segmenter.sha256 != block.sha256:
        raise SegmenterError(
            f"the saved model {name!r} is to have the SHA-256 {block.sha256}, and sha256 is "
            f"{segmenter.sha256}: leave sha256 out"
        )
    update: dict[str, Any] = {
        "model": block.model,
        "sha256": segmenter.sha256 or block.sha256,
        "diameter": segmenter.diameter or block.diameter,
    }
    return segmenter.model_copy(update=update), block.channels if channels is None else channels
