"""Covers of what a broker publishes, or of what it wants, and which of them are in effect.

A cover is in effect when the broker stands for it in the overlay and all brokers that it may concern have been met.
What a broader one replaces stays in effect until that one is. Changes that come together are brought into effect
together, one round after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from braidmq.host import Event, Host
from braidmq.mqtt.topics import covers
from braidmq.pubsub.covers.cover_set import CoverSet, literal_prefix
from braidmq.pubsub.covers.rendezvous import Prefix, Rendezvous

MEET_TRIES = 2
"""How often all brokers that a cover may concern are asked for, if some have not answered, before it counts as in
effect without them: they are met when all are asked again."""

Meet = Callable[[list[Prefix]], Awaitable[bool]]
"""Meets all brokers that covers with these prefixes may concern; whether all have answered."""


class EffectiveCovers:
    def __init__(self, host: Host, rendezvous: Rendezvous, meet: Meet) -> None:
        self.version = 0
        """Grows with each change of the covers."""
        self.is_unsure = False
        """Whether not all brokers have answered when covers were last brought into effect."""
        self._host = host
        self._rendezvous = rendezvous
        self._meet = meet
        self._covers = CoverSet()
        self._effective: dict[str, None] = {}
        self._retiring: list[str] = []
        """Those in effect that are no longer wanted, until what has replaced them is in effect."""
        self._round: Event | None = None
        """The end of the round that brings covers into effect now."""

    def __len__(self) -> int:
        return len(self._covers)

    @property
    def all(self) -> tuple[str, ...]:
        """The covers, in effect or not."""
        return tuple(self._covers)

    def effective_for(self, name: str) -> str | None:
        """The cover in effect that covers a topic or a filter."""
        cover = self._covers.cover_of(name)
        if cover in self._effective:
            return cover
        return next((one for one in self._retiring if covers(one, name)), None)

    def add(self, name: str) -> str | None:
        """Covers a topic or a filter, though not in effect yet; the new cover, None if there was one."""
        cover = self._covers.add(name)
        if cover is not None:
            self._on_changed()
        return cover

    def replace(self, names: Iterable[str]) -> None:
        """Covers these and nothing else; what was covered stays in effect until that is."""
        self._covers = self._covers.rebuilt(names)
        self._on_changed()
        self._begin_round()

    def adopt(self, names: Iterable[str]) -> None:
        """Covers these in a laid-out network, in which the keys for that are there, and nothing else is in effect."""
        self._covers = self._covers.rebuilt(names)
        self._on_changed()
        self._rendezvous.adopt(self._prefixes())

    async def leave(self) -> None:
        """Covers nothing any more; returns when this broker stands nowhere."""
        self._covers = self._covers.rebuilt(())
        self._on_changed()
        self._retiring = []
        await self._rendezvous.leave()

    def _on_changed(self) -> None:
        self.version += 1
        kept = dict.fromkeys(self._covers)
        self._retiring += [one for one in self._effective if one not in kept]
        self._effective = {one: None for one in self._effective if one in kept}

    async def until_effective(self, name: str) -> None:
        """Covers a topic or a filter; returns when that is in effect."""
        while self.effective_for(name) is None:
            self.add(name)
            await self._begin_round().wait()

    def _begin_round(self) -> Event:
        """The end of the present round, or of one that begins."""
        if self._round is None:
            self._round = self._host.event()
            self._host.spawn(self._bring_into_effect(self._round))
        return self._round

    async def _bring_into_effect(self, over: Event) -> None:
        try:
            version = self.version
            new = [one for one in self._covers if one not in self._effective]
            await self._rendezvous.stand_at(self._prefixes())
            prefixes = list(dict.fromkeys(literal_prefix(one) for one in new))
            self.is_unsure = not await self._meet_all(prefixes)
            for cover in new:
                if cover in self._covers:
                    self._effective[cover] = None
                else:  # replaced meanwhile, and in effect until what replaced it is
                    self._retiring.append(cover)
            if version == self.version and self._retiring:
                self._retiring = []
                self._host.spawn(self._rendezvous.stand_at(self._prefixes()))
        finally:
            self._round = None
            over.set()
        if any(one not in self._effective for one in self._covers):
            self._begin_round()

    def _prefixes(self) -> list[Prefix]:
        """Where this broker has to stand."""
        return list(dict.fromkeys(literal_prefix(one) for one in (*self._covers, *self._retiring)))

    async def _meet_all(self, prefixes: list[Prefix]) -> bool:
        for _ in range(MEET_TRIES):
            if not prefixes or await self._meet(prefixes):
                return True
        return False

    async def meet_again(self) -> None:
        """Meets all brokers once more: some may have been out of reach, or not been asked."""
        if len(self._covers):
            self.is_unsure = not await self._meet(self._prefixes())
