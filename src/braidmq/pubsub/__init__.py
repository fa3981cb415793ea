"""Publish/subscribe methods: how a publication gets from the broker where it is published to all that subscribe.

All are written against one interface (`method`), and listed in `registry`. `relay_free` has the methods over ordered
overlays, `locality` the one that crosses into each cluster once, `baselines` those that they are compared with.
"""

from braidmq.pubsub.method import (
    Method,
    OnDemand,
    OnMessage,
    OnQuestion,
    ProvenMethod,
    Publication,
    ScopedMethod,
)
from braidmq.pubsub.registry import METHODS, MethodEntry, MethodName, MethodSettings, OverlaySettings

__all__ = [
    "METHODS",
    "Method",
    "MethodEntry",
    "MethodName",
    "MethodSettings",
    "OnDemand",
    "OnMessage",
    "OnQuestion",
    "OverlaySettings",
    "ProvenMethod",
    "Publication",
    "ScopedMethod",
]
