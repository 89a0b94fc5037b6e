"""What can be told of a cluster before it starts."""

from __future__ import annotations


def is_saved(cluster: str) -> bool:
    """Whether it can only be the name of a saved block, which the API must be asked for."""
    from cytopave.blocks.cluster import PRESETS

    return "://" not in cluster and cluster not in PRESETS


def expected_workers(cluster: str, *, gpu: bool) -> int:
    """How many workers the cluster starts if their number is not given; 1 where nobody knows.

    Args:
        cluster: As in ``--cluster``.
        gpu: Whether the segmenter wants a GPU.

    Raises:
        ClusterError: There is no such cluster, or it needs a GPU and none is visible here.
    """
    from cytopave.blocks.cluster import resolve_cluster
    from cytopave.engine.gpu.vram import probe_gpu

    spec = resolve_cluster(cluster)
    if spec.address is not None:
        return spec.workers or 1
    wanted = gpu or spec.preset != "auto"
    _, options = spec.recipe(gpu=wanted and probe_gpu().visible)
    return int(options.get("n_workers", 1))
