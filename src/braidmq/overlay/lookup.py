"""Finding the owner of a key: one search, over the routing view of any ordered overlay.

Quickly first (`Lookup`): the request goes from broker to broker, always to the known node that is nearest to the key
without passing it, and the owner of the key answers the broker that asked. No broker on the way waits, so none notices
when the next one is dead. Then carefully (`CarefulLookup`): the broker that looks asks hop by hop, and so learns which
nodes are silent and goes round them; and those that named a silent node hear of it.

`find_hop_by_hop` is the careful search without its questions, and `outcome` the end of any request that goes from
broker to broker: Suzaku, whose nodes have questions of their own, and walks through the lists of a Skip Graph use them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from braidmq.host import Address, Forward, Host, Message, Reply, Service, ask, handles
from braidmq.keys import Key
from braidmq.overlay.overlay import FoundOwner, Introduce
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import RingNode, owns
from braidmq.overlay.silent_hosts import SilentHosts
from braidmq.overlay.view import View

FIND_TIMEOUT_S = 3.0
QUICK_S, QUICK_HOPS = 1.0, 3
"""How long a quick search takes at the most, where it can go on carefully; where hosts are far, so many round trips."""

FIND_TRIES = 3
FIND_HOPS_MAX = 128

HOP_S = (0.5, 1.5)
"""How long a node has to answer a careful search, each time that it is asked."""

SILENT_MAX = 32
"""How many silent nodes a careful search goes round."""


class FindOwner(Message, frozen=True, array_like=True, tag="Find", gc=False):
    """Goes to the owner of `key`, which answers; `to` is the node that the sender took for the nearest, if any.

    `before`: a node that stands at the key itself does not count. So it can ask for its own position, and is not led to
    itself by the links of higher levels when level 0 has lost it.
    """

    key: Key
    to: Key | None
    hops: int
    before: bool = False


class Nowhere(Message, frozen=True, array_like=True, gc=False):
    """The message met a node that is not there, or went on for too long: try again later."""


class AskWay(Message, frozen=True, array_like=True, gc=False):
    """Where would you go for this key? `avoid` are nodes that did not answer."""

    key: Key
    to: Key | None
    before: bool
    avoid: tuple[Key, ...]


class TellWay(Message, frozen=True, array_like=True, gc=False):
    """A node that is nearer, or the owner itself; neither if the key's owner is not known for certain."""

    step: Peer | None
    found: FoundOwner | None


class Lookup(Service):
    """A broker's part in the quick search for owners of keys."""

    def __init__(self, host: Host, view: Callable[[], View], introduce: Introduce) -> None:
        self._host = host
        self._view = view
        self._introduce = introduce
        host.serve(self)

    async def lookup(self, key: Key) -> FoundOwner | None:
        """The owner of a key, asked for several times; None if no broker answered."""
        for _ in range(FIND_TRIES):
            found = await self.find(key)
            if found is not None:
                return found
        return None

    async def find(self, key: Key, before: bool = False, introducer: Address | None = None) -> FoundOwner | None:
        """The owner of a key, or the node `before` it though one stands at the key itself; None without an answer.

        A broker that has no key in the overlay asks one that has.
        """
        if introducer is None and not self._view().own:
            introducer = self._introduce()
            if introducer is None:
                return None
        return await self._find_from(introducer, key, before)

    async def _find_from(self, introducer: Address | None, key: Key, before: bool) -> FoundOwner | None:
        """The search begins at another broker, or here."""
        answer = await outcome(self._host, self._begin(introducer, key, before))
        return answer if isinstance(answer, FoundOwner) else None

    def _begin(self, introducer: Address | None, key: Key, before: bool) -> Reply:
        if introducer is None:
            return self.on_find(self._host.address, FindOwner(key, None, 0, before))
        return Forward(introducer, FindOwner(key, None, 1, before))

    @handles(FindOwner)
    def on_find(self, origin: Address, find: FindOwner) -> Reply:
        view = self._view()
        if find.hops > FIND_HOPS_MAX or (find.to is not None and find.to not in view.own):
            return Nowhere()
        way = self._way(view, find.key, find.before, ())
        if way is None:
            return Nowhere()
        if isinstance(way, Peer):
            return Forward(way.address, FindOwner(find.key, way.key, find.hops + 1, find.before))
        return FoundOwner(way.me, way.right, find.hops)

    def _way(self, view: View, key: Key, before: bool, avoid: tuple[Key, ...]) -> Peer | RingNode | None:
        """A node that is nearer to a key, or the own one that owns it; None if neither is known."""
        own = view.own_up_to(key, before)
        if own is None:
            return None
        step = view.step_towards(key, self._host.now(), before, avoid)
        if step is not None:
            return step.peer
        return own if owns(own, key) or (before and own.right.key == key) else None


class CarefulLookup(Lookup):
    """As `Lookup`, and hop by hop where that gets no answer."""

    def __init__(
        self,
        host: Host,
        view: Callable[[], View],
        introduce: Introduce,
        on_silent: Callable[[Key], None],
        silent: SilentHosts,
    ) -> None:
        """`on_silent` is called with the key of a node that was named here and did not answer another broker. `silent`
        are the hosts that did not answer here just now."""
        super().__init__(host, view, introduce)
        self._silent = silent
        self._on_silent = on_silent

    async def _find_from(self, introducer: Address | None, key: Key, before: bool) -> FoundOwner | None:
        if not self._silent.are_any:
            found = await self._find_soon(introducer, key, before)
            if found is not None:
                return found

        async def ask_hop(to: Key | None, address: Address, silent: tuple[Key, ...]) -> FoundOwner | Peer | NoWay:
            told = await self._ask_way(address, AskWay(key, to, before, silent))
            return NoWay.ROUND if told is None else told.found or told.step or NoWay.ROUND

        start = self._host.address if introducer is None else introducer
        return await find_hop_by_hop((None, start), ask_hop, FIND_HOPS_MAX, SILENT_MAX)

    async def _find_soon(self, introducer: Address | None, key: Key, before: bool) -> FoundOwner | None:
        """The quick search, for a moment."""
        reply = self._begin(introducer, key, before)
        if isinstance(reply, Forward):
            assert reply.message is not None
            wait_s = max(QUICK_S, QUICK_HOPS * self._silent.slowest_s)
            reply = await ask(self._host, reply.to, reply.message, FoundOwner, timeout_s=min(wait_s, FIND_TIMEOUT_S))
        return reply if isinstance(reply, FoundOwner) else None

    async def _ask_way(self, address: Address, question: AskWay) -> TellWay | None:
        if address == self._host.address:
            return self._tell_way(question)
        return await self._silent.ask(address, question, TellWay, HOP_S)

    @handles(AskWay)
    def on_ask_way(self, origin: Address, question: AskWay) -> Reply:
        return self._tell_way(question)

    def _tell_way(self, question: AskWay) -> TellWay:
        avoid = question.avoid[:SILENT_MAX]
        for key in avoid:
            self._on_silent(key)
        view = self._view()
        if question.to is not None and question.to not in view.own:
            return TellWay(None, None)
        way = self._way(view, question.key, question.before, avoid)
        if isinstance(way, RingNode):
            return TellWay(None, FoundOwner(way.me, way.right, 0))
        return TellWay(way, None)


class NoWay(Enum):
    """Why a careful search cannot go on from a node."""

    ROUND = "it is silent, or knows none that is nearer: the search goes round it"
    END = "all that it knows are silent: the ring is broken there, and will be mended"


AskHop = Callable[[Key | None, Address, tuple[Key, ...]], Awaitable[FoundOwner | Peer | NoWay]]
"""Asks a node, or any node of a host if there is no key, for the way; what was silent is not to be named again."""


async def find_hop_by_hop(
    start: tuple[Key | None, Address], ask_hop: AskHop, hops_max: int, silent_max: int
) -> FoundOwner | None:
    """The careful search: from node to node, and back to the one before where a node leads no further."""
    way = [start]
    silent: dict[Key, None] = {}
    for _ in range(hops_max):
        to, address = way[-1]
        answer = await ask_hop(to, address, tuple(silent))
        if isinstance(answer, FoundOwner):
            return FoundOwner(answer.owner, answer.right, len(way) - 1)
        if isinstance(answer, Peer):
            way.append((answer.key, answer.address))
            continue
        way.pop()
        if answer is NoWay.END or not way or len(silent) >= silent_max:
            return None
        if to is not None:
            silent[to] = None
    return None


async def outcome(host: Host, reply: Reply) -> Message | None:
    """What comes of a request that was begun here: the answer, from here or from wherever it went; None if none."""
    if not isinstance(reply, Forward):
        return reply
    assert reply.message is not None
    return await ask(host, reply.to, reply.message, Message, timeout_s=FIND_TIMEOUT_S)
