"""The peers of a host by all their names, within a bound; those that nothing waits for make room."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from braidmq.net.addresses import parse_address
from braidmq.net.bounds import Bounds
from braidmq.net.counters import Counters
from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import Codec
from braidmq.net.peer import PeerState

_log = logging.getLogger("braidmq.net")


class Peers:
    def __init__(self, codec: Codec, bounds: Bounds, describe: Callable[[], str]) -> None:
        """`describe` says who this host is."""
        self.by_name: dict[str, PeerState] = {}
        """At most `bounds.links_max`; a peer is in it once for each of its names."""
        self.past = Counters()
        """Of peers that are forgotten."""
        self._codec = codec
        self._bounds = bounds
        self._describe = describe

    def get(self, name: object) -> PeerState | None:
        return self.by_name.get(name) if isinstance(name, str) else None

    def all(self) -> Iterable[PeerState]:
        """All that are known, each once."""
        return dict.fromkeys(self.by_name.values())

    def add(self, address: object) -> PeerState:
        """A new one; a ValueError if that is no address, a LinkError if there is no room."""
        parse_address(address)
        assert isinstance(address, str)
        if len(self.by_name) >= self._bounds.links_max:
            for peer in [peer for peer in self.all() if peer.is_forgettable]:
                self.forget(peer)
        if len(self.by_name) >= self._bounds.links_max:
            raise LinkError(Fault.CROWD, f"{len(self.by_name)} peers are enough (links_max)")
        peer = self.by_name[address] = PeerState(address, self._codec, self._bounds)
        return peer

    def forget(self, peer: PeerState) -> None:
        for name in peer.names:
            self.by_name.pop(name, None)
        self.past.add(peer.counters)

    def named(self, dialled: PeerState, address: str, now: float) -> PeerState:
        """The peer that was dialled, known by the address that it gave itself from now on."""
        if dialled.address == address:
            return dialled
        _log.info("%s: %s calls itself %s", self._describe(), dialled.address, address)
        known = self.by_name.get(address)
        if known is None or known is dialled:
            dialled.address = address
            if known is None:
                dialled.names.append(address)
                self.by_name[address] = dialled
            return dialled
        dialled.flush(now)
        known.absorb(dialled)
        for name in dialled.names:
            self.by_name[name] = known
        return known

    # What is known of them

    @property
    def linked(self) -> list[str]:
        """The addresses of the peers to which there is a link."""
        return [peer.address for peer in self.all() if peer.link is not None]

    @property
    def refusals(self) -> dict[str, str]:
        """Why this host is not let in, by the addresses of those that said so."""
        return {peer.address: peer.refusal for peer in self.all() if peer.refusal}

    def counters_of(self, name: str) -> Counters | None:
        peer = self.by_name.get(name)
        return None if peer is None else peer.counters

    def totals(self) -> Counters:
        totals = Counters()
        totals.add(self.past)
        for peer in self.all():
            totals.add(peer.counters)
        return totals
