"""Directly or by a third: the ways of a host that has links.

A link is the direct way, in both directions: one that nothing comes through is cut when the detour is sure, and a new
one ends the detour. To try the direct way is to dial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from braidmq.detours.messages import NotPassed
from braidmq.host import Address, Message
from braidmq.net.frames import LENGTH_BYTES, Passed, Tell
from braidmq.net.links import Links

HEARD_S = 1.5
"""A peer from which something has come so recently is heard."""


class NetWays:
    def __init__(self, links: Links) -> None:
        self._links = links
        self._peers = links.peers
        self.on_passed: Callable[[Address, Address], None] = _ignore

    @property
    def is_confined(self) -> Callable[[bytes], bool]:
        return self._links.is_confined

    @is_confined.setter
    def is_confined(self, is_confined: Callable[[bytes], bool]) -> None:
        self._links.is_confined = is_confined

    @property
    def detours(self) -> Mapping[Address, Address]:
        return {peer.address: peer.by for peer in self._peers.all() if peer.by}

    @property
    def linked(self) -> Sequence[Address]:
        return self._peers.linked

    def unanswered(self) -> Sequence[Address]:
        now = time.monotonic()
        found = []
        for peer in self._peers.all():
            sent, received = peer.looked_at
            peer.looked_at = (peer.sent, peer.received_bytes)
            if peer.looked_at[1] != received:
                peer.heard_at, peer.silent_since = now, inf
            elif peer.looked_at[0] != sent and not peer.by and not peer.has_left:
                peer.silent_since = min(now, peer.silent_since)
                found.append(peer.address)
        return found

    def hears(self, address: Address) -> bool:
        peer = self._peers.get(address)
        if peer is None or peer.link is None:
            return False
        now = time.monotonic()
        is_recent = now - max(peer.heard_at, peer.link.opened_at) < HEARD_S
        return is_recent or peer.received_bytes != peer.looked_at[1]

    def send_directly(self, to: Address, message: Message) -> None:
        peer = self._peers.get(to)
        if peer is None or not peer.has_left:
            self._links.queue(to, Tell(1, message), is_direct=True)

    def go_round(self, to: Address, by: Address, is_sure: bool = True) -> None:
        peer = self._peers.get(to)
        if peer is None or not isinstance(by, str):
            return
        if peer.link is not None and is_sure:
            peer.link.abort(f"nothing comes through: by {by} instead")
        peer.by = by
        for frame in map(bytes, peer.take_waiting()):
            if not self._links.is_confined(frame):
                self._links.send_round(peer, frame[LENGTH_BYTES:])

    def go_directly(self, to: Address) -> None:
        peer = self._peers.get(to)
        if peer is not None:
            peer.by = ""

    def hurry(self) -> None:
        self._links.hurry()

    def answer_round(self, origin: str, by: str, frame: bytes) -> bool:
        """Sends a reply the way that its request came; False if it has to go as anything else does. A host by which
        others were sent to before may be gone."""
        passing = self._peers.get(by)
        if origin == by or (passing is not None and passing.by):
            return False
        if self._links.is_confined(frame):
            return False
        passed = Passed(origin, self._links.address, frame[LENGTH_BYTES:])
        return self._links.queue(by, Tell(1, passed), is_direct=True) is None

    def pass_on(self, sender: str, passed: Passed) -> None:
        """Sends on what another peer has for a third, if there is a link to that."""
        peer = self._peers.get(passed.to)
        if passed.origin != sender:
            return
        if peer is None or peer.link is None:
            self._links.queue(sender, Tell(1, NotPassed(passed.to)))
        elif peer.unsent_bytes > self._links.bounds.passed_bytes_max:
            peer.counters.dropped += 1
        else:
            self._links.queue(passed.to, Tell(1, passed), is_direct=True)


def _ignore(*_: object) -> None:
    """Nobody decides on detours."""
