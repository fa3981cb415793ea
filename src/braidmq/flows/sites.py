"""Sites: where instances can run, and in which layer each of them is."""

from __future__ import annotations

import msgspec

from braidmq.flows.flow import LAYERS, FlowError, Layer


class FlowSite(msgspec.Struct, frozen=True):
    """A broker with computers beside it."""

    name: str
    layer: Layer
    cpu: float
    """Processors that instances may take in all."""
    memory: float
    """Memory that they may take, MiB."""
    cluster: str = ""
    has_spark: bool = False
    """Whether components that run on Spark can be started there."""


def layer_of(cluster: str) -> Layer:
    """The layer of a cluster by how deep its path is: `cloud1`, `cloud1/edge1`, `cloud1/edge1/bus7`."""
    depth = len(cluster.split("/")) if cluster else 0
    if not 1 <= depth <= len(LAYERS):
        raise FlowError(
            f"the cluster {cluster!r} has {depth} levels, and a layer has 1 (cloud), 2 (edge) or 3 (device): "
            "say which with --layer"
        )
    return LAYERS[-depth]
