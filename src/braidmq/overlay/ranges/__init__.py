"""Range delivery: one message to every node whose key lies in a range, told or proven, over any ordered overlay.

`RangeDelivery` is one host's part in it, a `Plan` says how a message travels, a `Cut` how ranges are cut on the way,
and an `Outcome` what came of it.
"""

from braidmq.overlay.ranges.arriving import OnDelivery, RangeArrival
from braidmq.overlay.ranges.collecting import OPEN_MAX, REISSUE_S, SWEEP_S, OnOutcome, Outcome
from braidmq.overlay.ranges.conditions import Condition
from braidmq.overlay.ranges.delivery import RangeDelivery
from braidmq.overlay.ranges.forwarding import SPLITS_KEPT_S, OnNobody
from braidmq.overlay.ranges.messages import PROVEN, Answering, Deliver, Plan, Retrying
from braidmq.overlay.ranges.splitting import Cut

__all__ = [
    "OPEN_MAX",
    "PROVEN",
    "REISSUE_S",
    "SPLITS_KEPT_S",
    "SWEEP_S",
    "Answering",
    "Condition",
    "Cut",
    "Deliver",
    "OnDelivery",
    "OnNobody",
    "OnOutcome",
    "Outcome",
    "Plan",
    "RangeArrival",
    "RangeDelivery",
    "Retrying",
]
