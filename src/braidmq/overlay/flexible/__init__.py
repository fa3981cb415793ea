"""The flexible graph: a ring, and above it bounded routing tables that are learnt (Banno and Shudo 2019)."""

from braidmq.overlay.flexible.graph import SIZE, FlexibleGraph
from braidmq.overlay.flexible.messages import SIZE_MAX
from braidmq.overlay.flexible.node import FlexibleNode
from braidmq.overlay.flexible.table import Contact, FlexibleTable, is_better, subscribers_of

__all__ = [
    "SIZE",
    "SIZE_MAX",
    "Contact",
    "FlexibleGraph",
    "FlexibleNode",
    "FlexibleTable",
    "is_better",
    "subscribers_of",
]
