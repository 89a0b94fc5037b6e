"""A run that dies at a chosen moment, in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from runs import merge_here, plan_of

from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST: dict[str, Any] = {
    "segmenter": Threshold(threshold=0.5),
    "tiling": Tiling(tile=(48, 48), halo=8),
}


def make_labels(image: str, dies_after: int | None) -> None:
    """Make the labels of an image whose tiles are there; die right after the n-th renaming.

    Files and folders get their names by renaming: these are the moments at which a reader, or the
    next run, can find something new.
    """
    if dies_after is not None:
        left = dies_after

        def counting(rename: Callable[..., None]) -> Callable[..., None]:
            def counted(*args: Any, **kwargs: Any) -> None:
                nonlocal left
                rename(*args, **kwargs)
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            return counted

        os.rename, os.replace = counting(os.rename), counting(os.replace)
    merge_here(plan_of(image, **REQUEST))
