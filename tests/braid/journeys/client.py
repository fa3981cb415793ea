"""A client with a session that stays, which goes from broker to broker as chance will have it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.braid.journeys.faulty_sites import FaultySites, Home
from tests.braid.journeys.link import ClientLink
from tests.conformance import wire
from tests.conformance.pair import persistent
from tests.conformance.wire import Received, Type

STAY_S = (0.5, 6.0)
"""How long it stays at a broker."""

AWAY_S = (0.0, 3.0)
"""How long it is away when it has left one."""

PATIENCE_S = 12.0
"""How long it waits for a CONNACK."""

JUST_S = 0.1
"""How long before a client comes something happens that its broker cannot know of."""

AGAIN_S = 0.2
"""When it tries again if a broker is down, or refuses it."""


class Connected(NamedTuple):
    """That it was let in: where, after how long, and what it was told of its session."""

    at: float
    site: int
    took_s: float
    situation: str
    is_present: bool
    may_be_anew: str
    """Why the session need not have been found; empty if it must."""
    was_safe: bool
    """Whether the broker had all its copies, and could ask those that had the session."""
    is_known: bool
    """Whether it could ask the broker that had the session, or a mirror of that …"""
    is_home_reached: bool
    """… and whether it could ask that broker itself."""


class RoamingClient:
    def __init__(self, sites: FaultySites, client_id: str, version: int, seed: int) -> None:
        self.sites = sites
        self.sim = sites.sim
        self.client_id = client_id
        self.version = version
        self.chance = Random(f"{seed}:{client_id}")
        self.link: ClientLink | None = None
        self.is_in = False
        """Whether it has a CONNACK."""
        self.roams = True
        self.home: Home | None = None
        """Where its session was last, as far as it knows."""
        self.connects: list[Connected] = []
        self._tried_at = 0.0
        self._began_at = 0.0
        self._situation = ""
        self._turn = 0
        self._may_ask = self._reaches_home = True
        self.unsafe_s: list[float] = []
        """When it got something from a broker that had fewer copies than are configured."""
        self.doubts: list[list[float]] = []
        """From when until when it had begun anew, and an older session of it was somewhere."""

    def note(self, text: str) -> None:
        self.sites.note(f"{self.client_id} {text}")

    def after(self, span: tuple[float, float], action: Callable[[], None]) -> None:
        """Unless something else happens to it before."""
        turn = self._turn
        self.sim.at(self.sim.now + self.chance.uniform(*span), lambda: action() if self._turn == turn else None)

    # Coming

    def come(self) -> None:
        """Connects to some broker."""
        self._turn += 1
        number = self.chance.randrange(self.sites.count)
        if number not in self.sites.all:
            self.after((AGAIN_S, AGAIN_S), self.come)
            return
        site = self.sites[number]
        self.link = ClientLink(site, self.version, self._on_packet, self._on_closed)
        self.is_in = False
        self._began_at = self.sim.now
        self._situation = self._situation_at(number)
        self._may_ask = self.sites.is_known_at(number, self.home)
        self._reaches_home = self.sites.is_reached_at(number, self.home)
        self.note(f"comes to {number} ({self._situation})")
        self.link.send(wire.connect(self.client_id, version=self.version, **persistent(self.version)))
        self.after((PATIENCE_S, PATIENCE_S), self._give_up)

    def _give_up(self) -> None:
        if not self.is_in and self.link is not None:
            self.note(f"waits no longer at {self.link.site.number}")
            where = f"at {self.link.site.number}, from {self._began_at:.3f}"
            self.sites.complaints.append(f"{self.client_id} waited {PATIENCE_S:g} s {where}, in vain")
            self.link.drop()
            self.come()

    def _situation_at(self, number: int) -> str:
        """How the broker that it comes to stands to the one that it was at."""
        home, sites = self.home, self.sites
        if home is None:
            return "first"
        if home.identity in sites.destroyed:
            return "destroyed"
        if home.number not in sites.all:
            return "down"
        if home.number == number:
            return "same"
        cut = sites.cuts.now
        there, back = (number, home.number) in cut, (home.number, number) in cut
        return ("cut both ways" if there and back else "cut one way") if there or back else "up"

    def may_be_behind(self, since_s: float, until_s: float) -> bool:
        """Whether it has come to a broker meanwhile that could not know all that its session has had since then: the
        broker before could not be asked, and had fewer copies than are configured, or none of these could be asked."""
        for one in self.connects:
            if since_s <= one.at <= until_s and not one.is_home_reached:
                if not one.is_known or any(since_s <= at <= one.at for at in self.unsafe_s):
                    return True
        return False

    # Going

    def leave(self) -> None:
        """Goes away, in one of several ways."""
        link = self.link
        if link is None or not self.is_in:
            return
        if not self.roams:
            return
        self._turn += 1
        how = self.chance.choice(["disconnects", "drops", "vanishes"])
        self.note(how)
        if how == "disconnects":
            link.finish(wire.disconnect())
        elif how == "drops":
            link.drop()
        else:
            link.vanish()
        self._lose_link()
        self.after((0.0, 0.05) if how == "vanishes" else AWAY_S, self.come)

    def _lose_link(self) -> None:
        self.link, self.is_in = None, False

    def _on_closed(self, link: ClientLink) -> None:
        if link is self.link:
            self.note(f"has lost {link.site.number}")
            self._turn += 1
            self._lose_link()
            self.after((AGAIN_S, 2 * AGAIN_S), self.come)

    # Packets

    def _on_packet(self, link: ClientLink, packet: Received) -> None:
        if link is not self.link:
            return
        if not self.sites.has_copies(link.site.number):
            self.unsafe_s.append(self.sim.now)
        if packet.type is Type.CONNACK:
            self._on_connack(link, packet)
        elif packet.type is not Type.DISCONNECT:
            self.on_packet(link, packet)

    def _on_connack(self, link: ClientLink, packet: Received) -> None:
        if packet.reason:
            self.note(f"is refused with {packet.reason:#x}")
            return  # the end of the connection follows
        site, now = link.site, self.sim.now
        is_known = self._may_ask and self.sites.is_known_at(site.number, self.home)
        may = ""
        if not is_known:
            may = "nobody can be asked that has it"
        elif self.sites.broken_at >= self._began_at - JUST_S:
            may = "something has just broken"
        took_s = now - self._began_at
        was_safe = self.sites.has_copies(site.number) and is_known
        is_reached = self._reaches_home and self.sites.is_reached_at(site.number, self.home)
        self.connects.append(
            Connected(
                now, site.number, took_s, self._situation, packet.session_present, may, was_safe, is_known, is_reached
            )
        )
        self.note(f"is in at {site.number}, present {packet.session_present:d}, after {took_s:.3f}")
        self.is_in = True
        if not packet.session_present:
            self.on_session_lost(bool(may) or self.home is None)
            if self.home is not None:
                self.doubts.append([self._began_at, float("inf")])
            if self.home is not None and not may:
                where = f"at {site.number}, {now:.3f} ({self._situation})"
                there = f"it was at {self.home.number}"
                self.sites.complaints.append(f"{self.client_id} was told {where} that it has no session: {there}")
        self.home = Home(site.number, site.braid.identity)
        self._turn += 1
        self.on_connected(packet.session_present)
        self.after(STAY_S, self.leave)

    def send(self, data: bytes) -> None:
        if self.link is not None:
            self.link.send(data)

    # What kinds of clients do

    def on_connected(self, is_present: bool) -> None:
        raise NotImplementedError

    def on_session_lost(self, is_allowed: bool) -> None:
        raise NotImplementedError

    def on_packet(self, link: ClientLink, packet: Received) -> None:
        raise NotImplementedError
