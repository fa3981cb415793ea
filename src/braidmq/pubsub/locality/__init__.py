"""Delivery that crosses into each cluster once, by delegates (PIQT: Ishihara et al. 2021, §3.1)."""

from braidmq.pubsub.locality.locality import Locality

__all__ = ["Locality"]
