"""Relay-free delivery: SG-TBPS over a Skip Graph, the adaptive method over flexible routing tables, and over Suzaku."""

from braidmq.pubsub.relay_free.relay_free import RelayFree

__all__ = ["RelayFree"]
