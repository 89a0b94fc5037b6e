"""After-processing of labels, out of core: one file an operation.

``remove``, ``clear_border`` and ``relabel`` decide about whole objects, from a ``census`` that is
taken block by block (``selection``). ``fill_holes`` and ``expand`` change pixels: holes by a graph
of ``atoms`` and what is ``enclosed`` in it, growth with a halo. A ``refinement`` says what a run
does; its ``stages`` can be spread over workers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cytopave.engine.refine.clear_border import ClearBorder
from cytopave.engine.refine.expand import Expand
from cytopave.engine.refine.fill_holes import FillHoles
from cytopave.engine.refine.relabel import Relabel
from cytopave.engine.refine.remove import RemoveLarge, RemoveSmall

type Operation = Annotated[
    FillHoles | RemoveSmall | RemoveLarge | ClearBorder | Expand | Relabel,
    Field(discriminator="kind"),
]
"""One step of after-processing and its options."""

__all__ = [
    "ClearBorder",
    "Expand",
    "FillHoles",
    "Operation",
    "Relabel",
    "RemoveLarge",
    "RemoveSmall",
]
