"""How a broker comes into its braid, and how it goes.

It looks for the braid among the brokers that were configured and joins the one that it finds, or begins one; two braids
that meet become one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from braidmq.braid.membership.admission import Admission
from braidmq.braid.membership.gossip import Gossip
from braidmq.braid.membership.home import HOME, home_key_of
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.looking_round import LookingRound
from braidmq.braid.membership.presence import Presence
from braidmq.host import Address, Host, run_all
from braidmq.overlay import Overlay
from braidmq.pubsub.method import LeavingMethod, Method

FOUND_AFTER_S = 5.0
"""How long a broker looks for other brokers before it begins a braid of its own."""

PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
"""Before all are asked again; it doubles each time, up to a bound."""

SEEDS_ASKED_MAX = 16
"""Configured brokers that are asked at a time when this one enters."""

_log = logging.getLogger("braidmq.braid")


class Entering:
    def __init__(
        self,
        host: Host,
        overlay: Overlay,
        method: Method,
        presence: Presence,
        introducers: Introducers,
        admission: Admission,
        gossip: Gossip,
        looking_round: LookingRound,
        name: str,
    ) -> None:
        self._host = host
        self._looking_round = looking_round
        self._overlay = overlay
        self._method = method
        self._presence = presence
        self._introducers = introducers
        self._admission = admission
        self._gossip = gossip
        self._name = name
        self._home = home_key_of(name)

    async def enter(self) -> None:
        """Joins the braid that an introducer is in, or begins one.

        A broker that a braid refuses does not begin another: its clients would be alone, and nobody would notice.
        """
        await self._look_for_introducer()
        if self._introducers() is None:
            self._overlay.found(self._home)
        else:
            self._host.spawn(self._looking_round.look())
            await self._overlay.join(self._home)
        await self._method.subscribe(HOME)
        await self._method.advertise(HOME)
        self._presence.enter()
        self._introducers.may_be_used = True
        other = self._introducers()
        if other is not None:
            await self._gossip.compare_with(other)

    async def _look_for_introducer(self) -> None:
        began_at = self._host.now()
        pause_s = PAUSE_S
        told = ""
        while not await self._find_introducer():
            refusal = self._admission.refusal
            if refusal and refusal != told:
                told = refusal
                _log.error("%s is not let into the braid, and goes on trying: %s", self._name, refusal)
            if not self._introducers.seeds or (self._host.now() - began_at > FOUND_AFTER_S and not refusal):
                break
            await self._host.sleep(pause_s * self._host.chance.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _find_introducer(self) -> bool:
        """Asks all that were configured at once: most of them may be down."""
        found: list[Address] = []

        async def ask(seed: Address) -> None:
            if await self._gossip.compare_with(seed):
                found.append(seed)

        seeds = [seed for seed in self._introducers.seeds if seed != self._host.address]
        self._host.chance.shuffle(seeds)
        await run_all(self._host, [ask(seed) for seed in seeds[:SEEDS_ASKED_MAX]], lambda: bool(found))
        self._introducers.may_be_used = self._introducers.may_be_used or bool(found)
        return bool(found)

    async def advertise(self, topic_filter: str) -> None:
        """Not before this broker is in the braid: the first key of a broker that knows nobody begins a ring."""
        await self._presence.entered.wait()
        await self._method.advertise(topic_filter)

    async def leave(self, published: Iterable[str], wanted: Iterable[str]) -> None:
        """Gives up what this broker has advertised and subscribed to: what a method gives up at once, and these topics.

        Of the topics in the order of keys every second one goes at a time, as in `leave_all`.
        """
        if isinstance(self._method, LeavingMethod):
            await self._method.leave()
        advertised = dict.fromkeys((*published, HOME))
        subscribed = dict.fromkeys((*wanted, HOME))
        topics = sorted({**advertised, **subscribed})

        async def end(topic: str) -> None:
            if topic in advertised:  # first: or it would have to stand as a publisher when it subscribes no longer
                await self._method.withdraw(topic)
            if topic in subscribed:
                await self._method.unsubscribe(topic)

        while topics:
            await run_all(self._host, [end(topic) for topic in topics[::2]])
            topics = topics[1::2]

    async def leave_overlay(self) -> None:
        await self._overlay.leave(self._home)
