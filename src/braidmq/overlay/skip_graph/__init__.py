"""The Multi-key Skip Graph (Banno et al. 2015), and routing by numeric ID on it."""

from braidmq.overlay.skip_graph.dht import FoundId, IdRouter, LostId, Step, Walk, id_of
from braidmq.overlay.skip_graph.graph import SkipGraph, VirtualNode

__all__ = ["FoundId", "IdRouter", "LostId", "SkipGraph", "Step", "VirtualNode", "Walk", "id_of"]
