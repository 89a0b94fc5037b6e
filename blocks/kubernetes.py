"""Workers as pods of Kubernetes, through the Dask operator."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cytopave.engine.errors import MissingExtraError

CLASS = "dask_kubernetes.operator.KubeCluster"
_QUANTITY = r"^\d+(\.\d+)?(m|[kKMGT]i?)?$"
# Of the settings, those that a worker's own process reads.
_SENT = ("CYTOPAVE_LOG_LEVEL", "CYTOPAVE_READ_RETRIES", "CYTOPAVE_READ_BACKOFF_SECONDS")


class Kubernetes(BaseModel):
    """One pod a worker, and one for the scheduler.

    The operator's resource definitions must be installed in the cluster. The image must hold the
    same cytopave as the process that starts the run (``deployments/containers``).
    """

    model_config = ConfigDict(extra="forbid")

    image: Annotated[str, Field(description="Container image with cytopave.", min_length=1)]
    namespace: Annotated[
        str | None, Field(description="Namespace; that of the current context if not set.")
    ] = None
    cpu: Annotated[str, Field(description="CPUs of a worker, such as 4.", pattern=_QUANTITY)] = "4"
    memory: Annotated[
        str, Field(description="Memory of a worker, such as 32Gi.", pattern=_QUANTITY)
    ] = "16Gi"
    gpu_resource: Annotated[
        str,
        Field(description="What Kubernetes calls one GPU. Asked for if workers have GPUs."),
    ] = "nvidia.com/gpu"
    env: Annotated[
        dict[str, str], Field(description="Environment of the workers and the scheduler.")
    ] = {}
    volumes: Annotated[
        dict[str, str],
        Field(
            description="Claims of shared volumes and where they are mounted: images that are no "
            "URLs, and tile files, must lie on one."
        ),
    ] = {}
    node_selector: Annotated[
        dict[str, str], Field(description="Labels of the workers' nodes.")
    ] = {}
    tolerations: Annotated[
        list[dict[str, Any]], Field(description="Taints that the workers tolerate.")
    ] = []
    image_pull_secret: Annotated[
        str | None, Field(description="Secret by which the image is fetched.")
    ] = None

    def recipe(self, *, name: str, workers: int, gpu: bool) -> tuple[str, dict[str, Any]]:
        """The cluster's class by name, and its arguments.

        Args:
            name: Name of the cluster's resources.
            workers: Number of pods.
            gpu: Whether each pod of a worker gets a GPU.

        Raises:
            MissingExtraError: dask-kubernetes is not installed.
        """
        options: dict[str, Any] = {
            "custom_cluster_spec": self.manifest(name=name, workers=workers, gpu=gpu),
            "quiet": True,
        }
        return CLASS, options | ({"namespace": self.namespace} if self.namespace else {})

    def manifest(self, *, name: str, workers: int, gpu: bool) -> dict[str, Any]:
        """The ``DaskCluster`` resource that is submitted.

        Raises:
            MissingExtraError: dask-kubernetes is not installed.
        """
        try:
            from dask_kubernetes.operator import make_cluster_spec
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"the cluster {CLASS} needs {error.name}: install cytopave[kubernetes]"
            ) from error
        env = {
            # As for schedulers that a run starts on its own host (tasks/runner.py).
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
            **{key: os.environ[key] for key in _SENT if key in os.environ},
            **self.env,
        }
        spec: dict[str, Any] = make_cluster_spec(
            name=name,
            image=self.image,
            n_workers=workers,
            env=env,
            # One tile at a time. Dask's own choice is one thread for each core of the node.
            worker_command=["dask", "worker", "--nthreads", "1"],
        )
        self._shape(spec["spec"]["worker"]["spec"], gpu=gpu)
        if self.image_pull_secret is not None:
            for part in ("worker", "scheduler"):
                pod = spec["spec"][part]["spec"]
                pod["imagePullSecrets"] = [{"name": self.image_pull_secret}]
        return spec

    def _shape(self, pod: dict[str, Any], *, gpu: bool) -> None:
        """Resources, volumes and place of a worker's pod; the scheduler needs none of them."""
        requests = {"cpu": self.cpu, "memory": self.memory}
        limits = {"memory": self.memory} | ({self.gpu_resource: "1"} if gpu else {})
        container = pod["containers"][0]
        container["resources"] = {"requests": requests, "limits": limits}
        if self.volumes:
            names = {claim: f"volume-{i}" for i, claim in enumerate(self.volumes)}
            pod["volumes"] = [
                {"name": name, "persistentVolumeClaim": {"claimName": claim}}
                for claim, name in names.items()
            ]
            container["volumeMounts"] = [
                {"name": names[claim], "mountPath": path} for claim, path in self.volumes.items()
            ]
        if self.node_selector:
            pod["nodeSelector"] = self.node_selector
        if self.tolerations:
            pod["tolerations"] = self.tolerations


def give_up(cluster_class: Any) -> None:
    """Delete what clusters that did not start have left in Kubernetes.

    dask-kubernetes would do it when the process ends, with a traceback if that fails again.
    """
    for cluster in list(getattr(cluster_class, "_instances", ())):
        with contextlib.suppress(Exception):
            cluster.close(timeout=10)
        cluster_class._instances.discard(cluster)
