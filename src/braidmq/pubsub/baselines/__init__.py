"""Methods for comparison: Scribe, Bayeux and CAN-MC, as Banno et al. 2015 (§3.1) have them."""

from braidmq.pubsub.baselines.bayeux import Bayeux
from braidmq.pubsub.baselines.can import CanMulticast
from braidmq.pubsub.baselines.scribe import Scribe

__all__ = ["Bayeux", "CanMulticast", "Scribe"]
