"""Introducers: the brokers that a broker asks to be let into the braid."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Host

MISSED_S = 20.0
"""How long one that did not answer is left alone."""

PARTED_S = 300.0
"""How long one that has said good-bye is taken for gone, if it is not heard of: it may be back and not have met us."""

INTRODUCERS_MAX = 64
"""Other brokers that are remembered to enter by."""


class Introducers:
    """Other brokers to enter by: those that were configured, and those that were met."""

    def __init__(self, host: Host, seeds: Iterable[Address]) -> None:
        self._host = host
        self.seeds = list(dict.fromkeys(seeds))
        self._met: BoundedDict[Address, None] = BoundedDict(INTRODUCERS_MAX)
        self._missed: dict[Address, float] = {}
        """When one of them did not answer."""
        self._parted: BoundedDict[Address, float] = BoundedDict(INTRODUCERS_MAX)
        """Those that have said good-bye, and were not heard of since; and when that was."""
        self.has_met = False
        """Whether any other broker was met."""
        self.may_be_used = False
        """Not before one of them is known to be in the braid."""

    @property
    def known(self) -> list[Address]:
        """All of them, those that were met first."""
        known = dict.fromkeys((*self._met, *self.seeds))
        return [address for address in known if address != self._host.address]

    def meet(self, address: Address) -> None:
        if address != self._host.address:
            self.has_met = True
            self.recall(address)
            self._missed.pop(address, None)
            self._met.renew(address, None)

    def miss(self, address: Address) -> None:
        """One of them did not answer: it is left alone for a while, if there are more."""
        if address in self._met or address in self.seeds:
            self._missed[address] = self._host.now()

    def part(self, address: Address) -> None:
        """One of them has ended, or moved."""
        self._met.pop(address, None)
        self._missed.pop(address, None)
        self._parted.renew(address, self._host.now())

    def recall(self, address: Address) -> None:
        """One that had ended is heard of again."""
        self._parted.pop(address, None)

    def has_parted(self, address: Address) -> bool:
        """Whether nobody is there, as far as it was heard."""
        parted_at = self._parted.get(address)
        return parted_at is not None and self._host.now() - parted_at < PARTED_S

    @property
    def stranger(self) -> Address | None:
        """One that was configured and is not known to be in the braid: down, or in another one that began apart."""
        strange = [
            one for one in self.seeds if one != self._host.address and (one not in self._met or one in self._missed)
        ]
        return self._host.chance.choice(strange) if strange else None

    def __call__(self) -> Address | None:
        if not self.may_be_used:
            return None
        recently = self._host.now() - MISSED_S
        likely = [one for one in self._met if self._missed.get(one, recently) <= recently] or self.known
        return self._host.chance.choice(likely) if likely else None
