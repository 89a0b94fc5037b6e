"""What the network sees of the planes of a pass, and what it says about them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cytopave.engine.boxes import Box
from cytopave.engine.patchwise import grid
from cytopave.engine.patchwise.grid import SIDE, Axis, Span

if TYPE_CHECKING:
    from cytopave.engine.cellpose_fast.passes import Pass, Window

type At = tuple[int, int, int]
"""A patch of a pass: its plane, and its index along the two axes of the plane."""


@dataclass(frozen=True)
class Planes:
    """What the network sees, made of the pixels as they are stored when it is needed.

    Attributes:
        image: ``(C, Z, Y, X)`` on the device.
        held: What of the stack that is.
        window: What is needed.
        intensity: Per channel, what becomes 0 and what becomes 1.
    """

    image: torch.Tensor
    held: Box
    window: Window
    intensity: tuple[tuple[float, float], ...]

    def patches(self, one: Pass, which: range, at: list[At]) -> torch.Tensor:
        """Cut patches ``(n, C, 256, 256)`` out of planes.

        Args:
            one: The pass.
            which: The planes.
            at: The patches.
        """
        canvas = self._canvas(one, which)
        axes = [self.window.axes[axis] for axis in one.along]
        corner = [self.window.spans[axis].canvas[0] for axis in one.along]
        cut = []
        for plane, j, i in at:
            y, x = axes[0].starts[j] - corner[0], axes[1].starts[i] - corner[1]
            cut.append(canvas[plane - which.start, :, y : y + SIDE, x : x + SIDE])
        return torch.stack(cut)

    def _canvas(self, one: Pass, which: range) -> torch.Tensor:
        """Network pixels of planes, ``(planes, C, rows, columns)`` float32, black outside."""
        needed = [span.inside for span in self.window.spans]
        needed[one.across] = (which.start, which.stop)
        read = [axis.read(*n) for axis, n in zip(self.window.axes, needed, strict=True)]
        cut = Box(*zip(*read, strict=True)).within(self.held)
        image = self._normalised(self.image[:, *cut])
        for dim in (1, 2, 0):  # Cellpose's order
            axis = self.window.axes[dim]
            if axis.resized:
                at = grid.linear(axis.length, axis.scaled, *needed[dim])
                image = interpolated(image, at, dim + 1, read[dim][0])
        image = image.movedim(one.across + 1, 0)
        before, after = (
            [abs(s.inside[end] - s.canvas[end]) for s in (self.window.spans[k] for k in one.along)]
            for end in (0, 1)
        )
        return torch.nn.functional.pad(image, (before[1], after[1], before[0], after[0]))

    def _normalised(self, stored: torch.Tensor) -> torch.Tensor:
        # a copy always: the tile may be wanted again
        image = stored.to(torch.float32, copy=True)
        for channel, (low, high) in zip(image, self.intensity, strict=True):
            if stored.is_floating_point():
                channel.nan_to_num_(nan=low, neginf=low, posinf=high)
            channel.sub_(low).div_(high - low)
        return image


def interpolated(values: torch.Tensor, at: grid.Sampling, dim: int, offset: int) -> torch.Tensor:
    """Resize one axis, of which sample ``offset`` comes first."""
    lower, upper, weight = (
        torch.from_numpy(v).to(values.device)
        for v in (at.lower - offset, at.upper - offset, at.weight)
    )
    weight = weight.view([-1 if axis == dim else 1 for axis in range(values.ndim)])
    below, above = values.index_select(dim, lower), values.index_select(dim, upper)
    return below.mul_(1 - weight).add_(above.mul_(weight))


def _within(axis: Axis, patch: int) -> slice:
    """The part of a patch that lies in the image."""
    start = axis.starts[patch]
    return slice(max(0, -start), min(SIDE, axis.scaled - start))


def inside(answer: torch.Tensor, one: Pass, at: At, window: Window) -> torch.Tensor:
    """What an answer says about the image: a thin stack is but a part of its patches."""
    rows, columns = (_within(window.axes[k], i) for k, i in zip(one.along, at[1:], strict=True))
    return answer[:, rows, columns]


def average(
    answers: dict[At, torch.Tensor], one: Pass, which: range, window: Window
) -> torch.Tensor:
    """Tapered mean of the patches over what is wanted of planes.

    Patches are added in raster order, one after the other: a sum with an order.

    Args:
        answers: Of all patches of the planes, each as `inside` left it.
        one: The pass.
        which: The planes.
        window: What is wanted.

    Returns:
        ``(3, planes, rows, columns)`` float32.
    """
    spans = [window.spans[axis] for axis in one.along]
    axes = [window.axes[axis] for axis in one.along]
    device = next(iter(answers.values())).device
    taper = torch.from_numpy(grid.taper()).to(device)
    sizes = [b - a for a, b in (span.wanted for span in spans)]
    total = torch.zeros((len(which), 3, *sizes), device=device)
    for j, i in itertools.product(spans[0].patches, spans[1].patches):
        stacked = torch.stack([answers[plane, j, i] for plane in which]).to(torch.float32)
        rows, columns = (
            _Overlap.of(axis, k, span) for axis, k, span in zip(axes, (j, i), spans, strict=True)
        )
        weight = taper[rows.patch, None] * taper[columns.patch]
        target = total[:, :, rows.wanted, columns.wanted]
        target += stacked[:, :, rows.answer, columns.answer] * weight
    sums = [
        torch.from_numpy(axis.weights(*span.wanted)).to(device)
        for axis, span in zip(axes, spans, strict=True)
    ]
    return (total / (sums[0][:, None] * sums[1])).movedim(1, 0)


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Where the pixels that a patch and a window share lie along one axis.

    Attributes:
        patch: In the patch.
        answer: In what is held of its answer.
        wanted: In what is wanted of the axis.
    """

    patch: slice
    answer: slice
    wanted: slice

    @classmethod
    def of(cls, axis: Axis, patch: int, span: Span) -> _Overlap:
        """Of one patch of an axis."""
        start, inside = axis.starts[patch], _within(axis, patch)
        first = max(start + inside.start, span.wanted[0])
        last = min(start + inside.stop, span.wanted[1])
        return cls(
            *(
                slice(first - origin, last - origin)
                for origin in (start, start + inside.start, span.wanted[0])
            )
        )
