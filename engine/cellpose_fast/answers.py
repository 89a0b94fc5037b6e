"""What a network answers to patches: each is asked for once, in full batches, and kept a while.

The network evaluates batches of one size (`network`). A window's patches seldom fill its last one:
an 8192 x 8192 image in tiles of 2048 has 1521 patches, and asked for by themselves those of each
tile take 1792 places in batches of 32. So what is left over waits for the next window's patches, or
until somebody needs it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cytopave.engine.cellpose_fast.streams import event

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from cytopave.engine.cellpose_fast.network import Network


@dataclass(slots=True, eq=False)
class Answer:
    """The answer to a patch, which may be waiting for its batch.

    Attributes:
        key: Equal for equal patches.
        patch: What the network is to see, ``(C, 256, 256)``; None once it has answered.
        maps: What it answers, ``(3, 256, 256)``; None until then.
        ready: From when on that is there. None on a CPU, and where it was when it was asked for.
    """

    key: Hashable
    patch: torch.Tensor | None = None
    maps: torch.Tensor | None = None
    ready: torch.cuda.Event | None = None


class Answers:
    """A network with what it has answered last and what it is still to be asked. For one thread.

    Attributes:
        network: The network.
        kept: Answers that another window may want again, the last one wanted last.
        keep_bytes: Device memory for them.
        evaluated: Number of patches asked for.
        reused: Number of patches that were wanted and had been asked for by another window.
    """

    def __init__(self, network: Network, *, keep_bytes: int) -> None:
        """Begin without any.

        Args:
            network: The network.
            keep_bytes: See above.
        """
        self.network = network
        self.kept: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self.evaluated = 0
        self.reused = 0
        self.keep_bytes = keep_bytes
        self._waiting: dict[Hashable, Answer] = {}

    def ask(self, patches: dict[Hashable, Callable[[], torch.Tensor]]) -> list[Answer]:
        """Evaluate as many batches as are full; the patches that are left over wait.

        Args:
            patches: By key, each patch: a function that gives it.

        Returns:
            An answer a patch, in their order.
        """
        answers = [self._known(key) or Answer(key, patch()) for key, patch in patches.items()]
        new = [a for a in answers if a.maps is None and a.key not in self._waiting]
        self.evaluated += len(new)
        self.reused += len(answers) - len(new)
        queue = [*self._left(), *new]
        self._evaluate(queue, len(queue) // self.network.batch)
        for answer in new:
            if answer.patch is not None:  # a copy: what is cut out of a window keeps all of it
                answer.patch = answer.patch.clone()
        self._forget(patches)
        return answers

    def complete(self, answers: Sequence[Answer]) -> None:
        """Evaluate those that still wait; others that do fill up their batch.

        They may wait elsewhere: with a network that was dropped meanwhile.
        """
        wanted = [a for a in answers if a.maps is None]
        others = [a for a in self._left() if a not in wanted]
        self._evaluate([*wanted, *others], math.ceil(len(wanted) / self.network.batch))
        self._forget({})

    def _known(self, key: Hashable) -> Answer | None:
        if key in self.kept:
            return Answer(key, maps=self.kept[key])
        return self._waiting.get(key)

    def _left(self) -> list[Answer]:
        """What waits; where a batch failed halfway, less what was answered before."""
        return [a for a in self._waiting.values() if a.maps is None]

    def _evaluate(self, queue: list[Answer], batches: int) -> None:
        """Evaluate the first batches of a queue; all else of it waits."""
        size = self.network.batch
        for start in range(0, batches * size, size):
            batch = queue[start : start + size]
            maps = self.network(torch.stack([a.patch for a in batch if a.patch is not None]))
            ready = event(maps.device)
            for answer, own in zip(batch, maps, strict=True):
                answer.patch, answer.maps, answer.ready = None, own, ready
                self.kept[answer.key] = own
        self._waiting = {a.key: a for a in queue if a.maps is None}

    def _forget(self, wanted: dict[Hashable, Callable[[], torch.Tensor]]) -> None:
        """Keep what was wanted last, as far as there is room."""
        for key in wanted:
            if key in self.kept:
                self.kept.move_to_end(key)
        if self.kept:
            each = next(iter(self.kept.values()))
            most = self.keep_bytes // (each.numel() * each.element_size())
            while len(self.kept) > most:
                self.kept.popitem(last=False)
