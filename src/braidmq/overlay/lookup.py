"""Finding the owner of a key, over the routing view of any ordered overlay.

Quickly first: the request goes from broker to broker, always to the known node that is nearest to the key without
passing it, and whoever owns the key answers the one who asked. Nobody on the way waits, so nobody notices when the next
one is dead. Then carefully: the one who looks asks hop by hop, and so learns who is silent and goes round it; and those
who named a silent node hear of it.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.host import Address, CallError, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.overlay import FoundOwner, Introduce
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, owns
from braidmq.overlay.skip_graph.messages import FindOwner, Nowhere
from braidmq.overlay.view import View

FIND_TIMEOUT_S = 3.0
FIND_HOPS_MAX = 128

SILENT_MAX = 32
"""How many silent nodes a careful search goes round."""


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
    """A broker's part in the search for owners of keys."""

    def __init__(
        self, host: Host, view: Callable[[], View], introduce: Introduce, on_silent: Callable[[Key], None]
    ) -> None:
        self._host = host
        self._view = view
        self._introduce = introduce
        self._on_silent = on_silent
        """Called with the key of a node that was named here and did not answer somebody."""
        host.serve(self)

    async def find(self, key: Key, before: bool = False, introducer: Address | None = None) -> FoundOwner | None:
        """The owner of a key, or the node `before` it though one stands at the key itself; None if nobody answered.

        A broker that has no key in the overlay asks one that has.
        """
        if introducer is None and not self._view().own:
            introducer = self._introduce()
            if introducer is None:
                return None
        found = await self._quickly(key, before, introducer)
        return found or await self._carefully(key, before, introducer)

    async def _quickly(self, key: Key, before: bool, introducer: Address | None) -> FoundOwner | None:
        if introducer is None:
            reply = self.on_find(self._host.address, FindOwner(key, None, 0, before))
        else:
            reply = Forward(introducer, FindOwner(key, None, 1, before))
        if isinstance(reply, Forward) and reply.message is not None:
            try:
                answer = await self._host.call(reply.to, reply.message, FIND_TIMEOUT_S)
            except CallError:
                return None
            return answer if isinstance(answer, FoundOwner) else None
        return reply if isinstance(reply, FoundOwner) else None

    @handles(FindOwner)
    def on_find(self, origin: Address, find: FindOwner) -> Reply:
        view = self._view()
        if find.hops > FIND_HOPS_MAX or (find.to is not None and find.to not in view.own):
            return Nowhere()
        way = self._way(view, find.key, find.before, find.hops, ())
        if way.step is not None:
            return Forward(way.step.address, FindOwner(find.key, way.step.key, find.hops + 1, find.before))
        return way.found or Nowhere()

    def _way(self, view: View, key: Key, before: bool, hops: int, avoid: tuple[Key, ...]) -> TellWay:
        own = view.own_up_to(key, before)
        if own is None:
            return TellWay(None, None)
        step = view.step_towards(key, self._host.now(), before, avoid)
        if step is not None:
            return TellWay(step.peer, None)
        if owns(own, key) or (before and own.right.key == key):
            return TellWay(None, FoundOwner(own.me, own.right, hops))
        return TellWay(None, None)

    async def _carefully(self, key: Key, before: bool, introducer: Address | None) -> FoundOwner | None:
        way: list[tuple[Key | None, Address]] = [(None, self._host.address if introducer is None else introducer)]
        silent: tuple[Key, ...] = ()
        for _ in range(FIND_HOPS_MAX):
            to, address = way[-1]
            told = await self._ask(address, AskWay(key, to, before, silent))
            if told is not None and told.found is not None:
                return FoundOwner(told.found.owner, told.found.right, len(way) - 1)
            if told is not None and told.step is not None:
                way.append((told.step.key, told.step.address))
                continue
            if to is None or len(silent) == SILENT_MAX:
                return None
            silent = (*silent, to)
            way.pop()
        return None

    async def _ask(self, address: Address, ask: AskWay) -> TellWay | None:
        if address == self._host.address:
            told: object = self.on_ask_way(address, ask)
        else:
            try:
                told = await self._host.call(address, ask, CALL_TIMEOUT_S)
            except CallError:
                return None
        return told if isinstance(told, TellWay) else None

    @handles(AskWay)
    def on_ask_way(self, origin: Address, ask: AskWay) -> Reply:
        for key in ask.avoid[:SILENT_MAX]:
            self._on_silent(key)
        view = self._view()
        if ask.to is not None and ask.to not in view.own:
            return TellWay(None, None)
        return self._way(view, ask.key, ask.before, 0, ask.avoid[:SILENT_MAX])
