"""The evaluation of a stack in three dimensions: three passes of the network over one grid.

Cellpose evaluates a stack three times, in planes across Z, across Y and across X. Each pass tells
the flow along the two axes of its planes; the flows along an axis are added up, and so are the
logits. The patches of all planes lie on the grid of the whole stack (`patches`), along Z too.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from cytopave.engine.boxes import Box
from cytopave.engine.cellpose_fast.dynamics3d import follow, meet
from cytopave.engine.cellpose_fast.evaluate import FLOW_SCALE, Evaluator, Recipe
from cytopave.engine.cellpose_fast.objects import Objects
from cytopave.engine.cellpose_fast.passes import PASSES, Pass, Window, planes_at_once
from cytopave.engine.cellpose_fast.slabs import Planes, average, inside, interpolated
from cytopave.engine.cellpose_fast.smooth import smoothed
from cytopave.engine.patchwise import grid
from cytopave.engine.patchwise.streams import event

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy as np

    from cytopave.engine.cellpose_fast.slabs import At
    from cytopave.engine.patchwise.evaluator import Begun
    from cytopave.engine.segmenters.place import Place


class VolumeEvaluator(Evaluator):
    """An `Evaluator` of stacks: pixels ``(C, Z, Y, X)`` in, labels ``(Z, Y, X)`` out."""

    def begin(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe) -> Begun:
        """Have the device compute the flows of a window; on CUDA, without waiting for them."""
        begun = self._begun(recipe)
        with self._lock, torch.no_grad():
            begun.maps = self.maps(pixels, place, recipe)
        begun.ready = event(begun.maps.device)
        return begun

    def maps(self, pixels: np.ndarray | torch.Tensor, place: Place, recipe: Recipe) -> torch.Tensor:
        """Flows along Z, Y and X of a window, and the logit: ``(4, Z, Y, X)`` float32."""
        assert recipe.volume is not None
        window = Window.of(place.window, place.shape, recipe.volume, rescale=recipe.rescale)
        image = torch.as_tensor(pixels).to(self.network.device, non_blocking=True)
        self._mark("upload")
        planes = Planes(image, place.region, window, recipe.intensity)
        sizes = [b - a for a, b in (span.wanted for span in window.spans)]
        flows = torch.zeros((4, *sizes), device=self.network.device)
        for one in PASSES:
            self._add(flows, one, planes, place, recipe)
        self._mark("network")
        flows = _resized(flows, window)
        flows = _smoothed(flows, window, place, recipe.volume.smooth)
        self._mark("average")
        return flows

    def _add(
        self, flows: torch.Tensor, one: Pass, planes: Planes, place: Place, recipe: Recipe
    ) -> None:
        """Add what one pass says, some planes at a time."""
        window = planes.window
        first, last = window.spans[one.across].wanted
        a, b = one.along
        needed = len(window.spans[a].patches) * len(window.spans[b].patches)
        step = planes_at_once(needed, self.network.batch)
        for start in range(first, last, step):
            stop = min(last, start + step)
            answers = self._pass_answers(one, range(start, stop), planes, place, recipe)
            mean = average(answers, one, range(start, stop), window).movedim(1, one.across + 1)
            part = flows.narrow(one.across + 1, start - first, stop - start)
            for channel, target in enumerate((a, b, 3)):
                part[target] += mean[channel]

    def _pass_answers(
        self, one: Pass, which: range, planes: Planes, place: Place, recipe: Recipe
    ) -> dict[At, torch.Tensor]:
        """What the network says to the patches of some planes, where they lie in the image."""
        spans = [planes.window.spans[axis] for axis in one.along]
        image = (place.image, place.time, place.shape)
        assert recipe.volume is not None
        how = (recipe.rescale, recipe.volume.anisotropy, recipe.intensity, one.across)
        keys: dict[At, Hashable] = {
            at: (image, how, at)
            for at in itertools.product(which, spans[0].patches, spans[1].patches)
        }
        found = {at: self._kept[key] for at, key in keys.items() if key in self._kept}
        self.reused += len(found)
        new = [at for at in keys if at not in found]
        self.evaluated += len(new)
        if new:
            batch = planes.patches(one, which, new)
            # no other window needs what the window of a whole image needs
            keep = place.window != Box.of(place.shape)
            for at, answer in zip(new, self.network(batch), strict=True):
                found[at] = inside(answer, one, at, planes.window)
                if keep:  # a copy, since a view would keep the whole batch
                    found[at] = self._kept[keys[at]] = found[at].clone()
        for key in keys.values():
            if key in self._kept:
                self._kept.move_to_end(key)
        self._forget()
        return found

    def _forget(self) -> None:
        held = sum(answer.numel() * answer.element_size() for answer in self._kept.values())
        while held > self._keep_bytes:
            _, answer = self._kept.popitem(last=False)
            held -= answer.numel() * answer.element_size()

    @staticmethod
    def objects(flows: torch.Tensor, recipe: Recipe, mark: Callable[[str], None]) -> Objects:
        """Objects of a window from the network's answer ``(4, Z, Y, X)``."""
        shape = tuple(flows.shape[1:])
        cells = (flows[3] > recipe.cellprob_threshold).flatten()
        foreground = cells.nonzero().squeeze(1)
        steps = torch.empty((len(cells), 3), device=flows.device)
        torch.mul(flows[:3].flatten(1).T, cells[:, None], out=steps).div_(FLOW_SCALE)
        ends = follow(steps, shape, foreground, recipe.steps)
        del steps
        mark("follow")
        numbers, count = meet(ends, shape)
        objects = Objects.numbered(foreground, numbers, count, recipe.min_size, shape)
        mark("meet")
        return objects


def _resized(flows: torch.Tensor, window: Window) -> torch.Tensor:
    """From network pixels back to the image's own."""
    for dim in (2, 3, 1):  # Cellpose's order
        axis, span = window.axes[dim - 1], window.spans[dim - 1]
        if axis.resized:
            bounds = window.bounds.start[dim - 1], window.bounds.stop[dim - 1]
            at = grid.linear(axis.scaled, axis.length, *bounds)
            sizes = list(flows.shape)
            sizes[dim] = len(at.weight)
            out = torch.empty(sizes, device=flows.device)
            # one channel at a time, since that takes several times its memory
            for channel, result in zip(flows, out, strict=True):
                result[:] = interpolated(channel, at, dim - 1, span.wanted[0])
            flows = out
    return flows


def _smoothed(
    flows: torch.Tensor, window: Window, place: Place, sigmas: tuple[float, float, float]
) -> torch.Tensor:
    """The window's flows, smoothed, and its logits, which are not."""
    own = place.window.within(window.bounds)
    if not any(sigmas):
        return flows
    out = torch.empty((4, *place.window.shape), device=flows.device)
    out[3] = flows[3][own]
    for channel in range(3):
        values = flows[channel]
        for dim, sigma in enumerate(sigmas):
            if sigma > 0:
                values = smoothed(
                    values,
                    dim,
                    sigma,
                    length=place.shape[dim],
                    held=(window.bounds.start[dim], window.bounds.stop[dim]),
                    wanted=(place.window.start[dim], place.window.stop[dim]),
                )
        out[channel] = values
    return out
