"""Which brokers are the mirrors of this one.

Those that were met, or that the routing table has, are asked whether they may; how long that takes says how near they
are. A mirror on another machine comes before one on the same, the last mirrors before others, and the nearest first. In
the same failure domain there is none, if domains are configured. A mirror on the same machine is replaced when one
elsewhere is found.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.presence import Presence
from braidmq.braid.mirrors.messages import AskMirror, CopyDropped, DropCopy, MirrorOffer
from braidmq.braid.mirrors.mirror_set import Mirror
from braidmq.braid.mirrors.mirror_stream import MirrorStream, StreamFailed
from braidmq.braid.mirrors.own_copies import OwnCopies
from braidmq.host import Address, Event, Host, ask, run_all
from braidmq.journal.journal import Journal
from braidmq.overlay import Overlay

CHOOSE_S: Final = 0.5
"""How long after a mirror is found to be missing, at least, brokers are asked again …"""
CHOOSE_S_MAX: Final = 5.0
"""… and at most: it doubles as long as none is found."""
REVIEW_S: Final = 30.0
"""How often it is looked for better mirrors while there are enough."""
ASK_S: Final = 1.0
"""How long a broker has to answer whether it may be a mirror."""
ASKED_MAX: Final = 16
"""Brokers that are asked at a time."""
FAILED_S: Final = 3.0
"""How long a broker is left alone that could not be made a mirror, if there are others."""
DROPPED_MAX: Final = 4
"""Former mirrors that are told so at a time."""

_log = logging.getLogger("braidmq.braid")


class Candidate(NamedTuple):
    is_near: bool
    """Whether it is on the same machine."""
    is_strange: bool
    """Whether it was no mirror before."""
    has_failed: bool
    round_trip_s: float
    address: Address
    offer: MirrorOffer

    @property
    def mirror(self) -> Mirror:
        return Mirror(self.offer.identity, self.address)


class MirrorChooser:
    def __init__(
        self,
        host: Host,
        presence: Presence,
        introducers: Introducers,
        overlay: Overlay,
        journal: Journal,
        copies: OwnCopies,
        identity: str,
        machine: str,
    ) -> None:
        self._host = host
        self._presence = presence
        self._introducers = introducers
        self._overlay = overlay
        self._journal = journal
        self._copies = copies
        self._identity = identity
        self._machine = machine
        self._lack: Event = host.event()
        self._failed: BoundedDict[str, float] = BoundedDict(ASKED_MAX * 4)
        """By identity: when one could not be made a mirror."""
        self._pause_s = CHOOSE_S
        copies.on_lack = self._on_lack

    def _on_lack(self) -> None:
        self._pause_s = CHOOSE_S
        self._lack.set()

    @property
    def _wanted(self) -> int:
        return self._copies.settings.copies - 1

    async def keep_choosing(self) -> None:
        while self._presence.is_in:
            await self._choose()
            if len(self._copies.streams) >= self._wanted:
                self._lack = self._host.event()
                await self._lack.wait(self._host.chance.uniform(0.5, 1.0) * REVIEW_S)
            else:
                await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * self._pause_s)
                self._pause_s = min(2 * self._pause_s, CHOOSE_S_MAX)

    async def _choose(self) -> None:
        """Begins with as many mirrors as are missing, or with a better one."""
        copies = self._copies
        candidates = await self._candidates()
        if not self._presence.is_in:
            return
        missing = self._wanted - len(copies.streams)
        near = [stream for stream in copies.streams.values() if stream.is_near]
        if missing <= 0 and near and len(copies.streams) == self._wanted:
            candidates = [one for one in candidates if not one.is_near]
            missing = 1
        for one in candidates[: max(0, missing)]:
            stream = MirrorStream(self._host, self._journal, self._identity, one.mirror, one.is_near)
            copies.streams[one.offer.identity] = stream
            self._host.spawn(self._begin(stream))
        if copies.count > self._wanted:
            await self._tell_former()

    async def _candidates(self) -> list[Candidate]:
        """Those that may be mirrors and are none, the best first."""
        routed = dict.fromkeys(entry.peer.address for entry in self._overlay.view.entries)
        met = dict.fromkeys((*self._introducers.known, *routed))
        known = [one for one in met if not self._introducers.has_parted(one)]
        self._host.chance.shuffle(known)
        last = [one.address for one in (*self._copies.set.mirrors, *self._copies.set.former)]
        streaming = {stream.mirror.address for stream in self._copies.streams.values()}
        asked = [one for one in dict.fromkeys((*last, *known)) if one not in streaming and one != self._host.address]
        found: list[Candidate] = []
        await run_all(self._host, [self._ask(address, found) for address in asked[:ASKED_MAX]])
        return sorted(found, key=lambda one: one[:4])

    async def _ask(self, address: Address, found: list[Candidate]) -> None:
        began_at = self._host.now()
        asked = AskMirror(self._identity, self._journal.position - self._journal.snapshot_position)
        offer = await ask(self._host, address, asked, MirrorOffer, timeout_s=ASK_S)
        if offer is None or offer.refusal or offer.identity in (self._identity, *self._copies.streams):
            return
        domain = self._copies.settings.failure_domain
        if domain and offer.failure_domain in ("", domain):
            return
        now = self._host.now()
        was_mirror = {one.identity for one in (*self._copies.set.mirrors, *self._copies.set.former)}
        found.append(
            Candidate(
                offer.machine == self._machine,
                offer.identity not in was_mirror or not offer.position,
                now - self._failed.get(offer.identity, now - FAILED_S) < FAILED_S,
                now - began_at,
                address,
                offer,
            )
        )

    async def _begin(self, stream: MirrorStream) -> None:
        try:
            begun = await stream.begin()
            self._copies.learn_term(begun.term)
            stream.send_heartbeat()
        except StreamFailed as error:
            _log.info("%s does not become a mirror of this broker: %s", stream.mirror.identity, error)
            self._failed.renew(stream.mirror.identity, self._host.now())
            self._copies.drop(stream)

    async def _tell_former(self) -> None:
        """There are enough copies: brokers that are mirrors no longer need not keep theirs."""
        copies = self._copies
        now = {stream.mirror.identity for stream in copies.streams.values()}
        former = [one for one in copies.set.former if one.identity not in now][:DROPPED_MAX]

        async def tell(mirror: Mirror) -> None:
            told = DropCopy(self._identity, copies.last_term)
            if await ask(self._host, mirror.address, told, CopyDropped, timeout_s=ASK_S) is not None:
                copies.forget_former(mirror.identity)

        await run_all(self._host, [tell(mirror) for mirror in former])

    def drop_surplus(self) -> None:
        """There is a mirror more than is wanted, since a better one was found: one on the same machine goes."""
        copies = self._copies
        while copies.count - 1 > self._wanted:
            counting = [one for one in copies.streams.values() if one.mirror.address in copies.mirrors]
            copies.drop(max(counting, key=lambda one: one.is_near))


def machine_of(address: Address) -> str:
    """What brokers on one machine have in common."""
    return address.rpartition(":")[0] if isinstance(address, str) else str(address)
