"""Suzaku: a ring in the order of keys with fingers to both sides (Abe and Teranishi 2019)."""

from braidmq.overlay.suzaku.messages import Finger, Update, Updated
from braidmq.overlay.suzaku.node import SuzakuNode
from braidmq.overlay.suzaku.suzaku import PERIOD_S, Suzaku
from braidmq.overlay.suzaku.totals import RangeTotal

__all__ = ["PERIOD_S", "Finger", "RangeTotal", "Suzaku", "SuzakuNode", "Update", "Updated"]
