"""CAN-MC: a small content-addressable network for each topic, which is flooded."""

from braidmq.pubsub.baselines.can.multicast import CanMulticast

__all__ = ["CanMulticast"]
