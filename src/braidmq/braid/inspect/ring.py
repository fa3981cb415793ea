"""The ring of brokers, seen by walking it.

Every broker has a home key, these stand side by side in the order of names, and each broker says which brokers are on
the left and right of its own. Where two of them disagree, or one is silent, the ring is being mended.

    "" pub a ── "" pub b ── "" pub c ── … keys of topics … ── (once around)
"""

from __future__ import annotations

from msgspec import UNSET

from braidmq.admin.ring_contract import RingAnswer, RingMember, Unreached
from braidmq.braid.inspect.answers import BROKERS_MAX, Unanswerable
from braidmq.braid.membership.admission import NOT_IN, Admission
from braidmq.braid.membership.home import HOMES_FROM, home_key_of, is_home
from braidmq.braid.membership.presence import Presence
from braidmq.braid.mirrors.mirrors import MirrorParts
from braidmq.detours.detours import Detours
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles
from braidmq.keys import Key, parts_of
from braidmq.overlay import Overlay, Peer
from braidmq.overlay.ring import RingNode

ASK_TIMEOUT_S = 2.0
"""How long a broker on the ring is waited for."""


class AskStatus(Message, frozen=True, array_like=True, gc=False):
    """How are you, and which brokers are beside you?"""


class TellStatus(Message, frozen=True, array_like=True, gc=False):
    """`left` and `right` are the neighbours of the home key; None while the broker is not in the braid."""

    name: str
    cluster: str
    is_in: bool
    age_s: float
    keys: int
    entries: int
    links: int
    left: Peer | None
    right: Peer | None
    ways: tuple[tuple[Address, Address | None], ...] = ()
    """The brokers that it does not reach directly, and by whom it does."""
    copies: int = 1
    """Of its store, its own included."""
    copies_wanted: int = 1
    mirrors: tuple[Address, ...] = ()
    """The brokers that hold the others."""


class RingWalk(Service):
    """One broker's side: it walks, and answers other brokers."""

    def __init__(
        self,
        host: Host,
        overlay: Overlay,
        presence: Presence,
        admission: Admission,
        detours: Detours,
        mirrors: MirrorParts,
        name: str,
        cluster: str,
    ) -> None:
        self._host = host
        self._overlay = overlay
        self._presence = presence
        self._admission = admission
        self._detours = detours
        self._mirrors = mirrors
        self._name = name
        self._cluster = cluster
        self._home = home_key_of(name)
        self._began_at = host.now()
        host.serve(self)

    @property
    def home_node(self) -> RingNode | None:
        return self._overlay.view.own.get(self._home)

    @property
    def age_s(self) -> float:
        return self._host.now() - self._began_at

    @property
    def repairs(self) -> int:
        """The repair number of the home key's left link: it grows whenever the ring was mended here."""
        node = self.home_node
        return 0 if node is None else node.lseq[0]

    @handles(AskStatus)
    def on_ask_status(self, _origin: Address, _asked: AskStatus) -> Reply:
        node, own = self.home_node, self._mirrors.own
        return TellStatus(
            self._name,
            self._cluster,
            self._presence.is_in,
            self.age_s,
            len(self._overlay.view.own_keys),
            len(self._overlay.view.entries),
            len(getattr(self._host, "linked", ())),
            None if node is None else node.left,
            None if node is None else node.right,
            tuple(self._detours.ways.items()),
            1 if own is None else own.count,
            1 if own is None else own.settings.copies,
            self._mirrors.addresses(),
        )

    async def walk(self) -> RingAnswer:
        """All brokers in the order of their home keys, and whether neighbours agree that they are neighbours."""
        node = self.home_node
        if node is None:
            raise Unanswerable(self._admission.trouble or NOT_IN)
        found = await self._overlay.lookup(HOMES_FROM)
        peer: Peer | None = node.me if found is None else found.right
        walked: dict[Key, tuple[Peer, TellStatus | None]] = {}
        while peer is not None and is_home(peer.key) and peer.key not in walked and len(walked) < BROKERS_MAX:
            told = await ask(self._host, peer.address, AskStatus(), TellStatus, timeout_s=ASK_TIMEOUT_S)
            walked[peer.key] = (peer, told)
            peer = await self._after(peer) if told is None else told.right
        is_whole = peer is not None and node.me.key in walked and (not is_home(peer.key) or peer.key in walked)
        return RingAnswer(_members(list(walked.values())), is_whole)

    async def _after(self, silent: Peer) -> Peer | None:
        """The broker behind one that does not answer, as far as it is known."""
        found = await self._overlay.lookup(silent.key + b"\0")
        return None if found is None or found.right.key == silent.key else found.right


def _members(walked: list[tuple[Peer, TellStatus | None]]) -> list[RingMember]:
    members = []
    names = {peer.address: parts_of(peer.key)[3] for peer, _ in walked}
    for index, (peer, told) in enumerate(walked):
        name, address = parts_of(peer.key)[3], str(peer.address)
        if told is None:
            members.append(RingMember(name=name, address=address, answers=False, is_healthy=False))
            continue
        agrees = _agrees(told.left, walked, index - 1) and _agrees(told.right, walked, index + 1)
        members.append(
            RingMember(
                name=name,
                address=address,
                answers=True,
                cluster=told.cluster,
                is_in=told.is_in,
                age_s=round(told.age_s, 3),
                keys=told.keys,
                routing_entries=told.entries,
                links=told.links,
                left=None if told.left is None else parts_of(told.left.key)[3],
                right=None if told.right is None else parts_of(told.right.key)[3],
                unreached=_unreached(told, names) or UNSET,
                copies=told.copies,
                copies_wanted=told.copies_wanted,
                copies_at=[names.get(one, str(one)) for one in told.mirrors],
                is_healthy=told.is_in and agrees,
            )
        )
    return members


def _unreached(told: TellStatus, names: dict[Address, str]) -> list[Unreached]:
    """By name. One that nobody reaches is of interest only if it stands in the ring: else it is gone."""
    return [
        Unreached(names.get(address, str(address)), None if by is None else names.get(by, str(by)))
        for address, by in told.ways
        if by is not None or address in names
    ]


def _agrees(neighbour: Peer | None, walked: list[tuple[Peer, TellStatus | None]], index: int) -> bool:
    """Whether a neighbour is the broker that answers there; beyond the first and the last stand the keys of topics."""
    if neighbour is None:
        return False
    if 0 <= index < len(walked):
        peer, told = walked[index]
        return neighbour.key == peer.key and told is not None
    return not is_home(neighbour.key) or neighbour.key in (walked[0][0].key, walked[-1][0].key)
