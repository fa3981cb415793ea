"""One component of many: Multicast, Anycast and the ledger find one that is near, free and fits, and reserve it.

A `Selector` is a broker's part in it: it offers components as a member of groups, and reserves those of others for
requests from here. What was reserved, a `Holder` keeps.
"""

from braidmq.select.anycast import AnycastOptions
from braidmq.select.group import ComponentGroup
from braidmq.select.holder import Holder
from braidmq.select.member import Component, Reservation
from braidmq.select.members import Aggregates
from braidmq.select.messages import NotReserved, Reserved
from braidmq.select.request import Need, SelectionRequest
from braidmq.select.selector import Selector

__all__ = [
    "Aggregates",
    "AnycastOptions",
    "Component",
    "ComponentGroup",
    "Holder",
    "Need",
    "NotReserved",
    "Reservation",
    "Reserved",
    "SelectionRequest",
    "Selector",
]
