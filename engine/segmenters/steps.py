"""A segmentation in steps, so that a worker can see to several tiles at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps from the pixels of a place to its labels.

    ``finish(settle(begin(prepare(pixels))))`` are the labels. One thread begins and settles, one
    tile after the other; the rest goes on beside it, and may be in several threads at once.

    Attributes:
        begin: What the device is for. May be called again with the same argument, after memory ran
            out, and so leaves it as it is.
        prepare: What can be done beforehand, on the host.
        settle: What remains to be done on the device after `begin`, and may wait until the device
            has got the next tile. It holds no model: that may be dropped in between. None: nothing.
        finish: What can be done afterwards, on the host.
    """

    begin: Callable[[Any], Any]
    prepare: Callable[[np.ndarray], Any] = _same
    settle: Callable[[Any], Any] | None = None
    finish: Callable[[Any], np.ndarray] = _same

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """All of them, one after the other."""
        begun = self.begin(self.prepare(pixels))
        return self.finish(begun if self.settle is None else self.settle(begun))
