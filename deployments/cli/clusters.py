"""What can be told of a cluster before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cytopave.deployments.cli.saved import await_api

if TYPE_CHECKING:
    from cytopave.blocks import Cluster
    from cytopave.engine.planning.budget import Budget
    from cytopave.engine.segmenters import Segmenter


def find_cluster(text: str) -> Cluster:
    """The cluster that ``--cluster`` names.

    Raises:
        UserError: There is none.
    """
    from cytopave.blocks.cluster import names_saved, resolve_cluster

    if names_saved(text):
        await_api(text)
    return resolve_cluster(text)


def expected_workers(cluster: Cluster, *, gpu: bool) -> int:
    """How many workers the cluster starts if their number is not given; 1 where nobody knows.

    Args:
        cluster: As in ``--cluster``.
        gpu: Whether the segmenter wants a GPU.

    Raises:
        ClusterError: It needs a GPU and none is visible here, or the other way round.
    """
    from cytopave.engine.gpu.vram import count_gpus

    if cluster.elsewhere:
        return cluster.workers or 1
    cards = count_gpus(cluster.gpus) if gpu or cluster.preset != "auto" else 0
    name, options = cluster.recipe(gpu=cards > 0)
    if "cuda" in name.lower():
        return min(cards, int(options.get("n_workers", cards)))
    return int(options.get("n_workers", 1))


def expected_budget(
    cluster: Cluster, segmenter: Segmenter, *, workers: int, assumed_gb: float | None
) -> Budget:
    """What a tile may take on workers that are not there yet, and where that figure comes from."""
    from cytopave.engine.planning.budget import distant_budget, host_budget, local_budget

    if cluster.elsewhere:
        return distant_budget(segmenter, gpu=cluster.has_gpus, assumed_gb=assumed_gb)
    if cluster.has_gpus is False:
        return host_budget(workers)
    return local_budget(segmenter, workers=workers, assumed_gb=assumed_gb)
