"""Proofs that nothing comes before what a session that has moved is given: asked of each origin, once.

While a session moves, an origin sends some publications to the old broker alone, and they may be long on their way. So
the first one of an origin that reaches the session here waits until the origin has said what was before it, under the
filters that came with the session and behind what the old broker had followed. When it answers, it knows that the
session is here: nothing later goes to the old broker alone. What is found is given first, then what waited.

An origin that is silent is given up: late is better than never.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.missed_fetching import MissedFetcher
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.gaps import moved_from
from braidmq.braid.roaming.marks import MarkedDelivery
from braidmq.braid.roaming.moved import delivery_of
from braidmq.braid.roaming.sessions import RoamingSession
from braidmq.braid.roaming.tail import is_wanted
from braidmq.broker.broker import Broker
from braidmq.broker.subscription import Subscribed
from braidmq.host import Host
from braidmq.mqtt.topics import split_share

BEFORE_S = 2.0
"""How long publications wait for what may be before them."""

PROOF_PAUSE_S = 0.1
"""How long it is waited before an origin that did not answer is asked again."""

Owe = Callable[[RoamingSession, dict[str, Subscribed], dict[str, SavedCursor]], None]


class OriginProofs:
    def __init__(self, broker: Broker, host: Host, clients: ClientRecords, owe: Owe) -> None:
        """`owe` is told what a session lacks of an origin that is silent."""
        self._broker = broker
        self._host = host
        self._clients = clients
        self._owe = owe
        self.fetcher: MissedFetcher
        """Asks the origins of histories."""
        self.is_effective: Callable[[list[str]], bool]
        """Whether filters have taken effect in the whole braid."""

    def begin(self, session: RoamingSession, subscriptions: dict[str, Subscribed]) -> None:
        """From now on the session says of which origins something waits."""
        session.on_unproven = partial(self._prove_soon, session, subscriptions)

    def _prove_soon(self, session: RoamingSession, subscriptions: dict[str, Subscribed], origin: str) -> None:
        self._host.spawn(self._prove(session, subscriptions, origin))

    async def _prove(self, session: RoamingSession, subscriptions: dict[str, Subscribed], origin: str) -> None:
        filters = [one for one in subscriptions if split_share(one)[0] is None]
        is_effective = self.is_effective(filters)
        floor, ranges = session.standing(origin)
        since = 0.0 if floor else self._clients.epochs.begun(session.client_id) / 1000 or self._broker.now()
        behind = {origin: SavedCursor("", floor, since, list(ranges))}
        ends_at = self._host.now() + BEFORE_S
        while True:
            last = session.last_unproven(origin)
            answer = await self.fetcher.fetch_behind(filters, behind)
            is_proven = not answer.silent and answer.floors[origin] >= last  # an old copy may have answered
            if is_proven or self._host.now() >= ends_at:
                break
            await self._host.sleep(PROOF_PAUSE_S)
        if self._broker.sessions.get(session.client_id) is not session or not session.is_unproven(origin):
            return
        now = self._broker.now()
        found: list[MarkedDelivery] = []
        for one in answer.found:
            moved = moved_from(subscriptions, *one)
            if moved is not None and is_wanted(session, moved.topic, moved.group):
                delivery = delivery_of(moved, now)
                if not delivery.message.expired(now):
                    found.append(MarkedDelivery(delivery, moved.mark, moved.follows))
        if not is_proven:
            self._owe(session, subscriptions, behind)
        is_last = is_effective and origin not in answer.copied
        session.prove(origin, found, answer.floors.get(origin, 0), is_last or not is_proven)
        self._broker.request_flush()
