"""The evaluation of windows by a network that sees patches: pixels in, maps, labels out.

The patches lie on one grid for the whole image (`grid`), in batches that neighbouring windows fill
together, and each is evaluated once. What they say is averaged to maps of the window; what labels
these maps mean is the method's own affair (`PatchEvaluator.read`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.patchwise.streams import aside, event
from cytopave.engine.patchwise.window import PlaneWindow, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy as np

    from cytopave.engine.segmenters.place import Place


class PatchNetwork(Protocol):
    """A network on its device that answers patches with maps.

    Attributes:
        batch: Patches evaluated at a time.
    """

    batch: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def set_batch(self, batch: int) -> None:
        """Evaluate so many patches at a time."""

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """Maps ``(n, maps, SIDE, SIDE)`` of patches ``(n, C, SIDE, SIDE)`` float32."""


class Labelled(Protocol):
    """The labels of a window, maybe still on their way to the host."""

    def finish(self) -> np.ndarray:
        """The labels: on the host, in any thread."""


@dataclass(slots=True, weakref_slot=True)
class Begun:
    """A window that the device has got. Keeps no network alive.

    Attributes:
        read: Makes labels of its maps.
        evaluator: Whose it is, where its last patches wait for a batch to be full.
        maps: ``(maps, [Z], Y, X)`` float32.
        ready: From when on they are there; None on a CPU.
    """

    read: Callable[[torch.Tensor], Labelled]
    evaluator: weakref.ref[PatchEvaluator[Any]] | None = None
    maps: torch.Tensor | None = None
    ready: torch.cuda.Event | None = None

    def complete(self) -> torch.Tensor:
        """The maps, for which no patch waits any more.

        Raises:
            OutOfMemoryError: The network was given up meanwhile.
        """
        if self.maps is None:
            evaluator = self.evaluator() if self.evaluator else None
            if evaluator is None:
                raise OutOfMemoryError("the network was given up before it saw all patches")
            evaluator.complete(self)
        assert self.maps is not None
        return self.maps

    def settle(self) -> Labelled:
        """Have the device make labels of the maps, and send them to the host.

        On CUDA in a stream of its own: the host has to know some numbers to go on, and waits for
        them while the device is at the network for the next window.

        Raises:
            OutOfMemoryError: As `complete`.
        """
        maps = self.complete()
        with aside(maps, self.ready), torch.no_grad():
            return self.read(maps)


class PatchEvaluator[R: Recipe](ABC):
    """A network with the patches that it has evaluated last: neighbouring tiles share some.

    Attributes:
        evaluated: Number of patches evaluated so far.
        reused: Number of patches that were needed and had been evaluated for another tile.
    """

    def __init__(
        self,
        network: PatchNetwork,
        *,
        keep_bytes: int = 2**29,
        mark: Callable[[str], None] | None = None,
    ) -> None:
        """Make an evaluator.

        Args:
            network: The network.
            keep_bytes: Device memory for patches that another tile may need again.
            mark: Called with a stage's name when the stage has been submitted.
        """
        self.network = network
        self.evaluated = 0
        self.reused = 0
        self._mark = mark or (lambda stage: None)
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self._waiting: dict[Hashable, torch.Tensor] = {}
        self._open: list[tuple[PlaneWindow, weakref.ref[Begun]]] = []
        self._lock = threading.Lock()

    def __call__(self, pixels: np.ndarray, place: Place, recipe: R) -> np.ndarray:
        """Labels of a window.

        Args:
            pixels: ``(C, Y, X)``: what `Place.region` holds.
            place: Where in the image that is.
            recipe: Every parameter.

        Returns:
            ``(Y, X)`` integer labels of `Place.window`.
        """
        return self.begin(pixels, place, recipe).settle().finish()

    def begin(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: R) -> Begun:
        """Have the device compute the maps of a window; on CUDA, without waiting for them.

        Its last patches wait for those of the next window, if they fill no batch; `Begun.complete`
        waits no longer.

        Args:
            pixels: As for a call; of a `pinned` tensor the device takes its copy by itself.
            place: Where in the image that is.
            recipe: Every parameter.
        """
        begun = self._begun(recipe)
        window = PlaneWindow.of(place, recipe)
        with self._lock, torch.no_grad():
            canvas = window.canvas(torch.as_tensor(pixels), self.network.device)
            self._mark("upload")
            self._drop_forsaken()
            self._ask(window, canvas)
            self._open.append((window, weakref.ref(begun)))
            self._close()
            while len(self._waiting) >= self.network.batch:
                self._evaluate()
        return begun

    @classmethod
    @abstractmethod
    def read(cls, maps: torch.Tensor, recipe: R, mark: Callable[[str], None]) -> Labelled:
        """Labels of a window from its maps ``(maps, [Z], Y, X)``, on their device.

        Of the class, since a window that was begun must keep no network alive.
        """

    def _begun(self, recipe: R) -> Begun:
        read = functools.partial(self.read, recipe=recipe, mark=self._mark)
        return Begun(read, weakref.ref(self))

    def complete(self, begun: Begun) -> None:
        """Evaluate what a window's maps still wait for, also if that does not fill a batch."""
        with self._lock, torch.no_grad():
            while begun.maps is None:
                self._evaluate()

    def maps(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: R) -> torch.Tensor:
        """The network's answer for a window: ``(maps, Y, X)`` float32."""
        return self.begin(pixels, place, recipe).complete()

    def _drop_forsaken(self) -> None:
        """Forget windows that nobody waits for any more, after a failure, and their patches."""
        self._open = [(window, begun) for window, begun in self._open if begun() is not None]
        wanted = {key for window, _ in self._open for key in window.keys.values()}
        self._waiting = {key: patch for key, patch in self._waiting.items() if key in wanted}

    def _ask(self, window: PlaneWindow, canvas: torch.Tensor) -> None:
        """Have the patches of a window wait that are neither known nor waiting already."""
        for at, key in window.keys.items():
            if key in self._kept:
                self._kept.move_to_end(key)
                self.reused += 1
            elif key in self._waiting:
                self.reused += 1
            else:
                self._waiting[key] = window.patch(canvas, at)
                self.evaluated += 1

    def _evaluate(self) -> None:
        """Evaluate one batch of those that wait, the first ones first."""
        keys = list(itertools.islice(self._waiting, self.network.batch))
        answers = self.network(torch.stack([self._waiting[key] for key in keys]))
        for key, answer in zip(keys, answers, strict=True):
            del self._waiting[key]
            self._kept[key] = answer
        self._mark("network")
        self._close()

    def _close(self) -> None:
        """Make the maps of the windows, in their order, of which all patches are known."""
        while self._open and all(key in self._kept for key in self._open[0][0].keys.values()):
            window, waits = self._open.pop(0)
            if (begun := waits()) is not None:
                begun.maps = window.maps(self._kept)
                begun.ready = event(begun.maps.device)
                self._mark("average")
            self._forget()

    def _forget(self) -> None:
        """Let go of patches needed longest ago, but of none that a window waits for."""
        if not self._kept:
            return
        each = next(iter(self._kept.values()))
        excess = len(self._kept) - self._keep_bytes // (each.numel() * each.element_size())
        if excess > 0:
            wanted = {key for window, _ in self._open for key in window.keys.values()}
            free = (key for key in [*self._kept] if key not in wanted)
            for key in itertools.islice(free, excess):
                del self._kept[key]
