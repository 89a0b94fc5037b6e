"""Cellpose 3 and 4, one tile at a time, with everything that is global fixed beforehand.

Percentiles, sizes, step counts and diameters are fixed by `resolve`. On the fast path nothing else
depends on the tile: objects are those of the undivided image. On the stock path Cellpose lays its
own grid of patches anew in each tile, and its result depends on the tile as far as that goes.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cytopave.engine.cellpose_fast.passes import Volume
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import cellpose_placed as placed
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.segmenters.cellpose_checks import check_axes, check_channels
from cytopave.engine.segmenters.cellpose_memory import Need, cellpose_footprint
from cytopave.engine.segmenters.cellpose_parameters import CellposeParameters
from cytopave.engine.segmenters.intensities import intensity_ranges
from cytopave.engine.segmenters.kept import Kept
from cytopave.engine.segmenters.memory import Footprint, cellpose_rule
from cytopave.engine.segmenters.patches import alone, steps
from cytopave.engine.segmenters.planes import stitched
from cytopave.engine.segmenters.torch_device import OnTorch
from cytopave.engine.segmenters.voxels import anisotropy

if TYPE_CHECKING:
    import numpy as np

    from cytopave.engine.boxes import Box
    from cytopave.engine.cellpose_fast.evaluate import Evaluator
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters.base import LabelFunction
    from cytopave.engine.segmenters.cellpose_common import Built, Evaluation
    from cytopave.engine.segmenters.place import Place
    from cytopave.engine.segmenters.steps import Steps


class Cellpose(OnTorch, CellposeParameters):
    """Cellpose, with the parameters that its users know.

    A stack is segmented with ``do_3D=True``, or plane by plane with ``stitch=True``; an image with
    one plane is a plane.
    """

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Find and check the weights, and fill what is fixed for the whole image.

        Raises:
            MissingExtraError: Cellpose is not installed.
            SegmenterError: The model is not there or not for the installed Cellpose, the image's
                axes or channels do not suit it.
            ImageError: The image has no finite pixel.
        """
        path, network = self._weights()
        check_axes(image, volume=self.do_3D, stitch=self.stitch)
        check_channels(len(channels), network.generation)
        if network.generation == 3 and len(set(self.flow3D_smooth)) > 1:
            raise SegmenterError(
                "Cellpose 3 smooths flows alike along all axes: give one number as flow3D_smooth"
            )
        intensity = self.intensity or intensity_ranges(image, channels, self.percentiles)
        if len(intensity) != max(1, len(channels)):
            raise SegmenterError(
                f"intensity holds {len(intensity)} ranges and {max(1, len(channels))} channels are "
                "selected: give one (low, high) per channel"
            )
        filled = {
            # a path is made absolute: workers start in other folders
            "model": str(path) if Path(self.model).expanduser().absolute() == path else self.model,
            "intensity": intensity,
            "niter": self.niter or max(1, int(200 / self._rescale(network))),
            "sha256": network.sha256,
            "network": network,
            "anisotropy": self.anisotropy or (anisotropy(image) if self.do_3D else 1.0),
            "use_bfloat16": self.use_bfloat16 if network.generation == 4 else False,
            "path": placed.resolved_path(self.path, network),
        }
        resolved = self.model_copy(update=filled)
        return resolved.model_copy(update={"batch_size": resolved.patch_batch})

    def _weights(self) -> tuple[Path, weights.Network]:
        path = weights.find(self.model)
        network = weights.inspect(path)
        if self.sha256 not in (None, network.sha256):
            raise SegmenterError(
                f"the weights of {self.model!r} ({path}) have the SHA-256 {network.sha256} and not "
                f"{self.sha256}: take the file that was meant, or leave sha256 empty"
            )
        if self.network is not None and self.network != network:
            raise SegmenterError(
                f"Cellpose {network.cellpose} is installed and the run was planned with "
                f"{self.network.cellpose}: install the same version everywhere"
            )
        return path, network

    @property
    def _volume(self) -> Volume | None:
        return Volume(self.anisotropy or 1.0, self.flow3D_smooth) if self.do_3D else None

    def _rescale(self, network: weights.Network) -> float:
        """Factor by which Cellpose scales the image before the network."""
        if self.diameter is not None:
            return network.diam_mean / self.diameter
        return 1.0 if network.generation == 4 else network.diam_mean / network.diam_labels

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        """On the fast path all that the patches see which cover the window, else the window."""
        if self.path != "fast" or self.network is None:
            return window
        rescale = self._rescale(self.network)
        return placed.region(window, shape, rescale=rescale, volume=self._volume)

    def at(self, place: Place) -> LabelFunction:
        """The function for one place; its network is built once per process."""
        if self.path != "fast":
            return self.load()
        self._evaluator()
        return self.steps(place)

    def steps(self, place: Place) -> Steps:
        """What `at` does, in steps."""
        if self.path != "fast" or self.network is None:
            return super().steps(place)
        recipe = placed.recipe(self._evaluation(), self._rescale(self.network))
        return steps(
            self._evaluator,
            place,
            recipe,
            batch=self.patch_batch,
            device=self.device,
            planewise=self.planewise,
        )

    def load(self) -> LabelFunction:
        """The function that segments one tile as an image by itself.

        Raises:
            SegmenterError: Not resolved; or this worker has other weights, another Cellpose, or no
                GPU where one was asked for.
        """
        how = self._evaluation()
        if self.path == "fast":
            self._evaluator()
            return lambda tile: self.steps(alone(tile, len(how.intensity)))(tile)
        self._built()
        return functools.partial(self._segment, how=how)

    def _evaluation(self) -> Evaluation:
        from cytopave.engine.segmenters.cellpose_common import Evaluation

        if self.network is None or self.intensity is None or self.niter is None:
            raise SegmenterError("the segmenter is open: call resolve(image) before load()")
        return Evaluation(
            diameter=self.diameter,
            intensity=self.intensity,
            flow_threshold=self.flow_threshold,
            cellprob_threshold=self.cellprob_threshold,
            min_size=self.min_size,
            niter=self.niter,
            batch_size=self.patch_batch,
            volume=self.do_3D,
            anisotropy=self.anisotropy or 1.0,
            flow3D_smooth=self.flow3D_smooth,
        )

    @property
    def patch_batch(self) -> int:
        """Patches at a time: as asked, else what suits the path."""
        return self.batch_size or (32 if self.path == "fast" else 8)

    def _evaluator(self) -> Evaluator:
        return _evaluators.get(self._network_key(), self._build_evaluator)

    def _build_evaluator(self) -> Evaluator:
        path, network = self._weights()
        return placed.build(
            path,
            network,
            device=self.device,
            bfloat16=self.in_bfloat16,
            batch=self.patch_batch,
            compiled=self.compile_network and self.uses_gpu,
            volume=self.do_3D,
        )

    def _segment(self, tile: np.ndarray, *, how: Evaluation) -> np.ndarray:
        from cytopave.engine.segmenters.cellpose_adapter import evaluate

        spatial = tile.ndim - (len(how.intensity) > 1)
        if spatial == 3 and not how.volume:
            planes = (tile[..., z, :, :] for z in range(tile.shape[-3]))
            return stitched(evaluate(self._built(), plane, how) for plane in planes)
        return evaluate(self._built(), tile, how)

    def _built(self) -> Built:
        return _networks.get(self._network_key(), self._build)

    def without_effect(self) -> set[str]:
        """What only decides where and how fast; once resolved, also what it was resolved from.

        A GPU and a CPU differ in the last bits of a float, as two models of GPU do.
        """
        names = {"batch_size", "device", "compile_network"}
        if self.sha256 is not None:
            names.add("model")
        if self.intensity is not None:
            names.add("percentiles")
        return names

    def _network_key(self) -> tuple[Any, ...]:
        return (self.sha256, self.device, self.in_bfloat16, self.compile_network, self.do_3D)

    def _build(self) -> Built:
        from cytopave.engine.segmenters.cellpose_adapter import build

        path, network = self._weights()
        return build(path, network, device=self.device, bfloat16=self.in_bfloat16)

    def release(self) -> None:
        """Drop the network that this process keeps; the next tile builds it again."""
        _networks.drop()
        _evaluators.drop()

    def smaller(self) -> Self | None:
        """The same with half the patches at a time, or None at one."""
        if self.patch_batch == 1:
            return None
        return self.model_copy(update={"batch_size": self.patch_batch // 2})

    @property
    def useful_side(self) -> int:
        """Side of a tile of a stack on a GPU; `benchmarks/patch_sharing.py` says what it saves."""
        fast = self._volume is not None and self.path == "fast"
        return 1024 if fast and self.uses_gpu else super().useful_side

    @property
    def planewise(self) -> bool:
        """Whether each plane of a stack is segmented by itself."""
        return not self.do_3D

    @property
    def diameter_px(self) -> float | None:
        """The diameter given, else that of the objects the network was trained on, else None."""
        if self.diameter is not None:
            return self.diameter
        return self.network.diam_labels if self.network else None

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker: the full network on a GPU, the small one on a core."""
        scale = self._rescale(self.network) if self.network else 1.0
        if self._volume is not None:  # three passes, most of them along a thin axis
            return (2.0 if on_gpu else 0.01) / scale**3
        if not on_gpu:
            return 0.1 / scale**2
        return (2.0 if self.path == "stock" else 16.0) / scale**2

    def placed_on(self, *, gpu: bool) -> Self:
        """The same without the choices that follow from the device.

        No worker falls back to its CPU silently, and all of a run's compute in as many bits.
        """
        placed = self.model_copy(update={"device": self.settled_device(gpu=gpu)})
        return placed.model_copy(update={"use_bfloat16": placed.in_bfloat16})

    @property
    def in_bfloat16(self) -> bool:
        """Whether it computes in 16 bits: as asked, else on GPUs (docs/methods.md says why)."""
        return self.uses_gpu if self.use_bfloat16 is None else self.use_bfloat16

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """GPU memory of a tile in bytes: the counted tensors on the fast path.

        On the stock path the larger of these and the rule of thumb: the rule knows nothing of
        network and batch, the count nothing of fragmentation; a plan that is too small fails a
        run, one that is too large costs a few more tiles.
        """
        if not self.wants_gpu:
            return 0
        if need := self._need(itemsize, n_channels):
            return need.on_device(window_shape)
        rule = cellpose_rule(window_shape, itemsize, n_channels)
        return max(rule, self.footprint().bytes(math.prod(window_shape)))

    def host_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        """The tensors of the window where CPU cores compute (benchmarks/host_memory.py)."""
        if self.wants_gpu:
            return 0
        if need := self._need(itemsize, n_channels):
            return need.of_window(window_shape)
        return int(math.prod(window_shape) * self.footprint().bytes_per_pixel)

    def _need(self, itemsize: int, n_channels: int) -> Need | None:
        """The counted tensors of the fast path."""
        if self.path != "fast" or self.network is None:
            return None
        return Need(
            network=self.network,
            channels=n_channels,
            stored=itemsize,
            itemsize=2 if self.in_bfloat16 else 4,
            batch=self.patch_batch,
            rescale=self._rescale(self.network),
            volume=self._volume,
        )

    def footprint(self) -> Footprint:
        """The counted tensors of the stock path; of ViT-L while the weights are not known."""
        return cellpose_footprint(
            self.network,
            bfloat16=self.in_bfloat16,
            batch_size=self.patch_batch,
            volume=self.do_3D,
            flow_check=self.flow_threshold > 0,
        )


_networks: Kept[Built] = Kept()
"""One at a time: each may fill a GPU."""
_evaluators: Kept[Evaluator] = Kept()
