"""Segmentation methods, one a file."""

from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.cellpose import Cellpose
from cytopave.engine.segmenters.custom import Custom
from cytopave.engine.segmenters.stardist import StarDist
from cytopave.engine.segmenters.stored import Stored
from cytopave.engine.segmenters.threshold import Threshold
from cytopave.engine.segmenters.torch_network import TorchNetwork
from cytopave.engine.segmenters.watershed import Watershed


class _AsForm:
    """Writes the JSON schema of a choice as Prefect's forms can draw it: they know no ``oneOf``."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        found["anyOf"] = found.pop("oneOf")
        del found["discriminator"]
        return found


Segmenter = Annotated[
    Cellpose | StarDist | Threshold | Watershed | TorchNetwork | Custom | Stored,
    Field(discriminator="kind"),
    _AsForm(),
]
"""Any of the methods, told apart by `kind`."""

__all__ = [
    "Cellpose",
    "Custom",
    "LabelFunction",
    "Segmenter",
    "SegmenterBase",
    "StarDist",
    "Stored",
    "Threshold",
    "TorchNetwork",
    "Watershed",
]
