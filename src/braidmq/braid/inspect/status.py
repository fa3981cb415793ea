"""What a broker can say of its braid to people: itself, the ring, its topics, who wants one, and the way to them.

Each broker knows its own state. The ring is seen by walking: every broker has a home key, these stand side by side in
the order of names, and each broker says who is on the left and right of its own. Where two of them disagree, or one is
silent, the ring is being mended.

    "" pub a ── "" pub b ── "" pub c ── … keys of topics … ── (once around)
"""

from __future__ import annotations

from typing import Any

import msgspec

from braidmq.braid.admission import NOT_IN
from braidmq.braid.braid import Braid
from braidmq.braid.gossip import HOME
from braidmq.braid.inspect.probes import TRACE_S_MAX, Probes
from braidmq.braid.transfer.accounting import HopCounts
from braidmq.broker.local_topics import LOCAL_PREFIXES
from braidmq.host import Address, CallError, Message, Reply, Service, handles
from braidmq.keys import SEPARATOR, Key, Role, key_of, parts_of
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, check_topic, matches
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.delivery import Outcome
from braidmq.overlay.ring import RingNode
from braidmq.pubsub.method import ProvenMethod, Publication

ASK_TIMEOUT_S = 2.0
"""How long a broker on the ring is waited for."""

BROKERS_MAX = 4096
"""Brokers that a walk visits, or that are named as subscribers."""

TOPICS_MAX = 10_000
"""Topics in one answer; the busiest come first."""

CURSORS_SHOWN_MAX = 256
DEMAND_S = 5.0
"""How long subscribers are waited for."""

FILTERS_TOLD_MAX = 16
"""Filters that a subscriber names."""

SETTLE_S = 3.0
"""How long a probe waits until it is known who wants its topic."""

POLL_S = 0.02

HOMES_FROM: Key = key_of(HOME, Role.PUBLISHER, "", "")
HOMES_TO: Key = HOMES_FROM[:-1] + b"\x01"
"""All home keys lie in this range, and in the order of the brokers' names."""

WHO = b"\xc1who"
"""The question to subscribers: who are you?"""

Json = dict[str, Any]


class Unanswerable(Exception):
    """A question that has no answer here; says why."""


class AskStatus(Message, frozen=True, array_like=True, gc=False):
    """How are you, and who is beside you?"""


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


_Answer = tuple[Address, tuple[str, ...]]
"""What a subscriber says to `WHO`: where it is, and which filters of its clients match."""

_INTERNAL = tuple(prefix.encode() for prefix in LOCAL_PREFIXES)
_PUBLISHER = ord(str(int(Role.PUBLISHER)))

_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(str).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class Status(Service):
    """Made for a braid, between it and its method: it sees what arrives, and takes out what is not for clients."""

    def __init__(self, braid: Braid, cluster: str, method_name: str) -> None:
        self.braid = braid
        self.cluster = cluster
        self.method_name = method_name
        self.hops = HopCounts()
        self._host = braid.host
        self._began_at = braid.host.now()
        self._probes = Probes(braid.host, braid.method, braid.name, cluster, braid.broker.now)
        self._pass_on = braid.method.on_message
        braid.method.on_message = self._on_message
        if isinstance(braid.method, ProvenMethod):
            self._answer = braid.method.on_question
            braid.method.on_question = self._on_question
        self._host.serve(self)

    def _on_message(self, arrival: Publication) -> None:
        if arrival.topic != HOME:
            if self._probes.is_probe(arrival):
                return
            if arrival.origin != self._host.address:
                self.hops.add(arrival.hops)
        self._pass_on(arrival)

    def _on_question(self, topic_filter: str, body: bytes) -> bytes | None:
        if not body.startswith(WHO):
            return self._answer(topic_filter, body)
        try:
            topic = _decode_topic(body[len(WHO) :])
        except msgspec.MsgspecError:
            return None
        filters = [one for one in self.braid.interest.filters if matches(one, topic)]
        return _encode((self._host.address, tuple(filters[:FILTERS_TOLD_MAX])))

    # This broker

    def keys_by_kind(self) -> dict[str, int]:
        """How many keys this broker stands for: for all brokers, for the braid's own needs, for filters."""
        found = {"home": 0, "internal": 0, "publisher": 0, "subscriber": 0}
        for key in self.braid.overlay.view.own_keys:  # may be many: looked at as bytes
            end = key.index(SEPARATOR)
            if not end:
                found["home"] += 1
            elif key.startswith(_INTERNAL):
                found["internal"] += 1
            else:
                found["publisher" if key[end + 1] == _PUBLISHER else "subscriber"] += 1
        return found

    @property
    def suspended(self) -> int:
        """Topics that are published here and that nobody wants."""
        return sum(not outbound_topic.is_open for outbound_topic in self.braid.outbound)

    def _home_node(self) -> RingNode | None:
        return self.braid.overlay.view.own.get(self.braid.home)

    @property
    def repairs(self) -> int:
        """The repair number of the home key's left link: it grows whenever the ring was mended here."""
        node = self._home_node()
        return 0 if node is None else node.lseq[0]

    def describe(self) -> Json:
        """This broker's part of the braid."""
        braid, node = self.braid, self._home_node()
        return {
            "name": braid.name,
            "identity": braid.identity,
            "address": str(self._host.address),
            "cluster": self.cluster,
            "method": self.method_name,
            "is_in": braid.is_in,
            "trouble": braid.admission.trouble,
            "age_s": round(self._host.now() - self._began_at, 3),
            "left": None if node is None else _told(node.left),
            "right": None if node is None else _told(node.right),
            "repairs": self.repairs,
            "keys": self.keys_by_kind(),
            "routing_entries": len(braid.overlay.view.entries),
            "introducers": [str(address) for address in braid.introducers.known],
            "shapes": list(braid.shapes),
            "filters": len(braid.interest.filters),
            "topics": {
                "published": len(braid.outbound),
                "suspended": self.suspended,
                "dropped": braid.outbound.dropped,
            },
            "history": {
                "origin": braid.origin,
                "head": braid.history.head,
                "length": len(braid.history),
                "bytes": braid.history.bytes,
                "forgotten": braid.history.forgotten,
            },
            "cursors": [
                {
                    "origin": origin,
                    "address": str(cursor.address),
                    "floor": cursor.floor,
                    "seen": len(cursor.seen),
                    "head": cursor.head,
                }
                for origin, cursor in list(braid.cursors)[:CURSORS_SHOWN_MAX]
            ],
            "inlets": {"duplicates": braid.inbound.duplicates, "given_up": braid.inbound.given_up},
            "unproven": braid.unproven,
            "fetched": braid.reconciler.fetched,
            "hops": {"publications": sum(self.hops.by_hops), "total": self.hops.total},
        }

    def topics(self, wanted: str = "#", count_max: int = TOPICS_MAX) -> Json:
        """The topics that are published here, the busiest first, and the filters of clients here."""
        try:
            check_filter(wanted)
        except PacketError as error:
            raise Unanswerable(str(error)) from None
        braid, now = self.braid, self._host.now()
        outbound = [one for one in braid.outbound if wanted == "#" or matches(wanted, one.topic)]
        outbound.sort(key=lambda one: (-one.number, one.topic))
        standing = dict.fromkeys(braid.interest.standing)
        filters = sorted(one for one in braid.interest.filters if wanted in ("#", one) or matches(wanted, one))
        return {
            "broker": braid.name,
            "published": [
                {
                    "topic": one.topic,
                    "publications": one.number,
                    "filters": list(one.filters),
                    "wanted": list(one.wanted),
                    "is_settled": one.is_settled,
                    "idle_s": round(now - one.used_at, 3),
                }
                for one in outbound[:count_max]
            ],
            "published_in_all": len(outbound),
            "interest": [
                {"filter": one, "stands": one in standing, "is_effective": not braid.announcer.is_awaited(one)}
                for one in filters[:count_max]
            ],
            "interest_in_all": len(filters),
        }

    # The ring

    @handles(AskStatus)
    def on_ask_status(self, _origin: Address, _asked: AskStatus) -> Reply:
        node = self._home_node()
        return TellStatus(
            self.braid.name,
            self.cluster,
            self.braid.is_in,
            self._host.now() - self._began_at,
            len(self.braid.overlay.view.own_keys),
            len(self.braid.overlay.view.entries),
            len(getattr(self._host, "linked", ())),
            None if node is None else node.left,
            None if node is None else node.right,
        )

    async def ring(self) -> Json:
        """All brokers in the order of their home keys, and whether neighbours agree that they are neighbours."""
        node = self._home_node()
        if node is None:
            raise Unanswerable(self.braid.admission.trouble or NOT_IN)
        found = await self.braid.overlay.lookup(HOMES_FROM)
        peer: Peer | None = node.me if found is None else found.right
        walked: dict[Key, tuple[Peer, TellStatus | None]] = {}
        while peer is not None and _is_home(peer.key) and peer.key not in walked and len(walked) < BROKERS_MAX:
            told = await self._ask(peer.address)
            walked[peer.key] = (peer, told)
            peer = await self._after(peer) if told is None else told.right
        is_whole = peer is not None and node.me.key in walked and (not _is_home(peer.key) or peer.key in walked)
        return {"brokers": _rows(list(walked.values())), "is_whole": is_whole}

    async def _ask(self, address: Address) -> TellStatus | None:
        try:
            told = await self._host.call(address, AskStatus(), ASK_TIMEOUT_S)
        except CallError:
            return None
        return told if isinstance(told, TellStatus) else None

    async def _after(self, silent: Peer) -> Peer | None:
        """Who follows one that does not answer, as far as others know."""
        found = await self.braid.overlay.lookup(silent.key + b"\0")
        return None if found is None or found.right.key == silent.key else found.right

    # Who wants a topic, and the way to them

    async def demand(self, topic: str) -> Json:
        """The brokers whose clients want a topic."""
        _check_passed_on(topic)
        filters = self.braid.shapes.filters_for(topic)
        method = self.braid.method
        if not isinstance(method, ProvenMethod):
            raise Unanswerable(f"with the method {self.method_name} nobody knows who subscribes to a topic")
        brokers, is_complete = await self._ask_subscribers(method, topic, filters)
        rows = [
            {"name": name, "cluster": cluster, "filters": sorted(known)} for (name, cluster), known in brokers.items()
        ]
        return {
            "topic": topic,
            "could_match": list(filters),
            "brokers": sorted(rows, key=lambda row: str(row["name"])),
            "is_complete": is_complete,
        }

    async def _ask_subscribers(
        self, method: ProvenMethod, topic: str, filters: tuple[str, ...]
    ) -> tuple[dict[tuple[str, str], dict[str, None]], bool]:
        outcomes: list[Outcome] = []
        for topic_filter in filters:
            method.ask(topic_filter, WHO + _encode(topic), DEMAND_S, outcomes.append)
        ends_at = self._host.now() + DEMAND_S + 2.0  # the asking ends first
        while len(outcomes) < len(filters) and self._host.now() < ends_at:
            await self._host.sleep(POLL_S)
        brokers: dict[tuple[str, str], dict[str, None]] = {}
        for outcome in outcomes:
            for key, answer in list(outcome.answers.items())[:BROKERS_MAX]:
                topic_filter, _, cluster, name = parts_of(key)
                try:
                    _, known = _decode_answer(answer)
                except msgspec.MsgspecError:
                    known = ()
                brokers.setdefault((name, cluster), {}).update(dict.fromkeys((topic_filter, *known)))
        return brokers, len(outcomes) == len(filters) and all(one.complete for one in outcomes)

    async def trace(self, topic: str, surely: bool = False, timeout_s: float = SETTLE_S) -> Json:
        """Sends a probe where a publication on the topic would go; its way."""
        _check_passed_on(topic)
        if not self.braid.is_in:
            raise Unanswerable(self.braid.admission.trouble or NOT_IN)
        if self._probes.is_full:
            raise Unanswerable("too many probes are under way")
        outbound_topic = self.braid.outbound.for_publication(topic)
        ends_at = self._host.now() + SETTLE_S
        while not outbound_topic.is_settled and self._host.now() < ends_at:
            await self._host.sleep(POLL_S)
        wanted = list(outbound_topic.wanted)
        met = await self._probes.follow(wanted, surely, min(timeout_s, TRACE_S_MAX)) if wanted else []
        names: dict[Address, str] = {one.address: one.name for one in met}
        names[self._host.address] = self.braid.name
        return {
            "topic": topic,
            "from": self.braid.name,
            "cluster": self.cluster,
            "method": self.method_name,
            "surely": surely,
            "filters": wanted,
            "is_settled": outbound_topic.is_settled,
            "receivers": len(dict.fromkeys(one.name for one in met if one.is_taken)),
            "hops": [
                {
                    "filter": one.topic_filter,
                    "hop": one.hops,
                    "from": None if one.sender is None else names.get(one.sender, str(one.sender)),
                    "to": one.name,
                    "cluster": one.cluster,
                    "receives": one.is_taken,
                    "at_ms": round(one.at_s * 1000, 3),
                }
                for one in met
            ],
        }


def _check_passed_on(topic: str) -> None:
    try:
        check_topic(topic)
    except PacketError as error:
        raise Unanswerable(str(error)) from None
    if topic.startswith(LOCAL_PREFIXES):
        raise Unanswerable(f"{topic!r} is each broker's own: topics that begin so are not passed on")


def _is_home(key: Key) -> bool:
    return HOMES_FROM <= key < HOMES_TO


def _told(peer: Peer) -> Json:
    topic, role, cluster, name = parts_of(peer.key)
    return {"name": name, "cluster": cluster, "address": str(peer.address), "topic": topic, "role": role.name.lower()}


def _rows(walked: list[tuple[Peer, TellStatus | None]]) -> list[Json]:
    rows = []
    for place, (peer, told) in enumerate(walked):
        row: Json = {"name": parts_of(peer.key)[3], "address": str(peer.address), "answers": told is not None}
        if told is not None:
            row |= {
                "cluster": told.cluster,
                "is_in": told.is_in,
                "age_s": round(told.age_s, 3),
                "keys": told.keys,
                "routing_entries": told.entries,
                "links": told.links,
                "left": None if told.left is None else parts_of(told.left.key)[3],
                "right": None if told.right is None else parts_of(told.right.key)[3],
            }
        is_healthy = (
            told is not None
            and told.is_in
            and _agrees(told.left, walked, place - 1)
            and _agrees(told.right, walked, place + 1)
        )
        rows.append(row | {"is_healthy": is_healthy})
    return rows


def _agrees(neighbour: Peer | None, walked: list[tuple[Peer, TellStatus | None]], place: int) -> bool:
    """Whether a neighbour is who answers at a place; beyond the first and the last stand the keys of topics."""
    if neighbour is None:
        return False
    if 0 <= place < len(walked):
        peer, told = walked[place]
        return neighbour.key == peer.key and told is not None
    return not _is_home(neighbour.key) or neighbour.key in (walked[0][0].key, walked[-1][0].key)
