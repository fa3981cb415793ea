"""What the network between brokers can be made to do, be it a `proxy` on loopback or made of `namespaces`."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

Pair = tuple[int, int]
"""Two brokers, the smaller number first."""

Way = tuple[int, int]
"""From one broker to another."""


def pair_of(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def ways_of(pair: Pair) -> tuple[Way, Way]:
    return pair, (pair[1], pair[0])


@dataclass(frozen=True)
class Site:
    """Where a broker runs."""

    host: str
    """Its address, for clients and for other brokers."""
    port: int
    """For clients."""
    braid_port: int
    admin_port: int
    advertise: str
    """Where other brokers reach it."""
    prefix: tuple[str, ...] = ()
    """What stands before its command, so that it runs there."""

    @property
    def is_on_loopback(self) -> bool:
        return self.host == "127.0.0.1"


class Network(abc.ABC):
    """Brokers at their sites, and the ways between them."""

    kind: ClassVar[str]

    @abc.abstractmethod
    async def open(self, number: int) -> Site:
        """A place for a broker."""

    @abc.abstractmethod
    async def close(self) -> None: ...

    @abc.abstractmethod
    def cut(self, pair: Pair) -> None:
        """There are no connections between a pair any more, and each is told so."""

    @abc.abstractmethod
    def mute(self, way: Way) -> None:
        """Nothing passes on one way, and nobody is told."""

    @abc.abstractmethod
    def heal(self, way: Way) -> None:
        """Ends whatever breaks this way, and a cut of the pair."""

    @property
    @abc.abstractmethod
    def broken(self) -> list[Way]: ...

    def stall(self, pair: Pair) -> None:
        """Nothing passes between a pair, and neither side is told."""
        for way in ways_of(pair):
            self.mute(way)

    def heal_pair(self, pair: Pair) -> None:
        for way in ways_of(pair):
            self.heal(way)
