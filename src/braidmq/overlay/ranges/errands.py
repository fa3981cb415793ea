"""Errands: how a message in a Skip Graph comes to every broker of a range once, however many keys the broker has there.

Cutting a range between keys brings a message once to every key, and to a broker as often as its keys fall to different
forwarders. "Each physical node receives the same query only once" (Banno et al. 2015, §5.2) takes more: the brokers
must be divided, not the keys. Membership vectors divide them, as all virtual nodes of a broker have the same one:

    an errand to P: all brokers of the range whose vectors begin with 01        P = 0110
      no others begin with 0110…     P has seen to itself
      011|1    to Q, a neighbour of P on level 3 and not on level 4: all that begin with 0111
      01|0     to S, a neighbour on level 2 and not on level 3: all that begin with 010

Each gets the whole range, in one message for all its keys, and divides its list as P did: a tree of as many levels as
the graph has. A broker beside P on level i and not on level i + 1 is of the sister of P's list on level i + 1.

P may have no broker of a sister beside it, though there are some. The brokers of P's list in the range and those of the
sister are linked in the list of the level below: so if the sister has a broker in the range, some broker of P's list
stands beside it. These are not sent out, then, but visited one after the other, each with the errands that are left,
until one of them knows a broker of the sister (`sought`); all errands that are left go out from there. If the visits
end without one, the sister has none. With k keys in the range, P knows no broker of a sister about once in 4^k times.

Under MRF a broker sends two messages at most, as the paper has it: the largest list goes to one of its brokers, and
what is left, about as many brokers, to another that sees to that, too.

All this rests on the lists. A node that has joined level 0, and not yet the lists above, is in no errand: what is only
told can miss it until it is; what is to be proven finds it as a gap, which is sent to by keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.messages import Errand
from braidmq.overlay.vectors import DIGITS_MAX, Vector, is_member, level_of, list_of, shared_digits
from braidmq.overlay.view import RoutingEntry

EVERYBODY = Errand(list_of(0, 0))
"""All brokers of a range."""


def go_on(
    vector: Vector, beside: Iterable[RoutingEntry], errand: Errand, at_most_two: bool = False
) -> list[tuple[Peer, Errand]]:
    """Which brokers a broker with this vector sends on which errands, if it knows these nodes in the range."""
    contacts = {entry.level: entry.peer for entry in beside}
    sought = list(errand.sought)
    left = [(shared_digits(vector, ring), peer, ring) for peer, ring in errand.others]
    if is_member(vector, errand.ring):
        end = min(max(contacts, default=-1) + 1, DIGITS_MAX)
        sought += [_sister(vector, level) for level in range(level_of(errand.ring), end)]
    else:  # it was taken for one of that list
        sought.append(errand.ring)
    missing: list[tuple[int, int]] = []
    for ring in sought:
        level = shared_digits(vector, ring)
        peer = contacts.get(level)
        if peer is None:
            missing.append((level, ring))
        else:
            left.append((level, peer, ring))
    return _send_out(sorted(left, key=lambda one: one[0]), missing, at_most_two)


def _send_out(
    left: list[tuple[int, Peer, int]], missing: list[tuple[int, int]], at_most_two: bool
) -> list[tuple[Peer, Errand]]:
    """A broker that shares more digits with this one than a missing list does can help to find it, and has to wait."""
    if not left:
        return []
    nearest, peer, ring = left[-1]
    still = [(level, one) for level, one in missing if level < nearest]
    at_once = [one for one in left[:-1] if not still or one[0] <= min(still)[0]]
    if at_most_two:
        at_once = at_once[:1]
    others = tuple([(to, one) for _, to, one in left[len(at_once) : -1]])
    last = Errand(ring, others, tuple([one for _, one in still]))
    return [*((to, Errand(one)) for _, to, one in at_once), (peer, last)]


def _sister(vector: Vector, level: int) -> int:
    """The list one level above with the brokers that share just so many digits with a vector."""
    return list_of(vector ^ 1 << (DIGITS_MAX - 1 - level), level + 1)
