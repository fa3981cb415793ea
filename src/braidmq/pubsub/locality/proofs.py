"""Proof that every subscriber in a range has a publication, though its parts are left to delegates.

Each part begins at an area's first subscriber, the delegate, whose range delivery so has nothing to ask on its left. It
reaches up to the next area's first subscriber, so what lies between two areas is accounted for by the one before,
and a subscriber that nobody knew of there gets the publication, too. Only what lies before the first area is asked for.
What the delegates report is taken from the gaps; to what remains the publication is sent again, by a directory that is
learnt anew. A delegate proves its part in the same way, if there are clusters below its own.

What is for one cluster only (`RoutedPublication.within`) is never sent to those on the way to it: a subscriber
before the first that is known there is not delivered to from here, but handed to when the directory has been learnt
again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.host import Address, Host, Message, Reply, Service, handles
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.ranges import OPEN_MAX, PROVEN, REISSUE_S, SWEEP_S, Outcome, RangeDelivery
from braidmq.pubsub.locality.delegates import ClusterArea, ClusterDirectories, ClusterDirectory

PART_OF_TIME = 0.8
"""The share of a proof's time that delegates get, so that what they could prove comes in time."""


class RoutedPublication(Message, tag="Carried", frozen=True, array_like=True, gc=False):
    """A publication on its way; (origin, number) names it."""

    origin: Address
    number: int
    hops: int
    within: KeyRange | None
    """No broker outside may see it; None is no limit."""
    body: bytes


class Proven(Message, frozen=True, array_like=True, gc=False):
    """All subscribers in these ranges have the publication."""

    origin: Address
    number: int
    ranges: tuple[KeyRange, ...]


OnEnd = Callable[[tuple[KeyRange, ...]], None]
"""Called with the gaps that are left, none if all is proven."""

Hand = Callable[[ClusterDirectory, ClusterArea, KeyRange, RoutedPublication, float], None]
"""Leaves a part of a directory's range to the delegate of an area, which has so many seconds to prove it."""


class _Proof(msgspec.Struct):
    """A range in which every subscriber shall have a publication, and the parts of which that is not known yet."""

    directory: ClusterDirectory | None
    """None if the range is delivered to from here, without delegates."""
    carried: RoutedPublication
    gaps: tuple[KeyRange, ...]
    again_at: float
    ends_at: float
    on_end: OnEnd
    delivering: tuple[KeyRange, ...] = ()
    """What range deliveries of this broker's own are proving; they repeat themselves."""
    is_repeated: bool = False


class Proofs(Service):
    """The proofs that a broker is after, of its own publications and as a delegate."""

    def __init__(self, overlay: Overlay, ranges: RangeDelivery, directories: ClusterDirectories, hand: Hand) -> None:
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._directories = directories
        self._hand = hand
        self._proofs: dict[tuple[Address, int], list[_Proof]] = {}
        self._is_sweeping = False
        self._host.serve(self)

    @property
    def is_full(self) -> bool:
        return len(self._proofs) >= OPEN_MAX

    def prove(
        self,
        directory: ClusterDirectory | None,
        part: KeyRange,
        carried: RoutedPublication,
        timeout_s: float,
        on_end: OnEnd,
    ) -> None:
        """Brings a publication to all in a range, and says when that is proven or time is over."""
        now = self._host.now()
        proof = _Proof(directory, carried, (part,), now + REISSUE_S, now + timeout_s, on_end)
        self._proofs.setdefault((carried.origin, carried.number), []).append(proof)
        self._issue(proof)
        if self._proofs and not self._is_sweeping:
            self._is_sweeping = True
            self._host.spawn(self._sweep())

    def _issue(self, proof: _Proof) -> None:
        """Sends to the gaps; if not for the first time, by what is newly learnt."""
        directory = proof.directory
        if directory is None:
            for gap in without(proof.gaps, proof.delivering):
                self._deliver(proof, gap)
            return
        if proof.is_repeated:
            directory.expire()
        proof.is_repeated = True
        self._directories.when_known(directory, lambda known: self._issue_parts(proof, known))

    def _issue_parts(self, proof: _Proof, directory: ClusterDirectory) -> None:
        left_s = self._left_s(proof)
        if left_s <= 0 or directory.learnt_at is None:
            return
        for gap in without(proof.gaps, proof.delivering):
            head, parts = directory.split_at_firsts(*gap)
            if head[0] < head[1]:
                self._host.spawn(self._prove_head(proof, directory, head))
            for delegate, part in parts:
                if delegate.first.key in self._overlay.view.own:
                    self._deliver(proof, part)
                else:
                    self._hand(directory, delegate.area, part, proof.carried, left_s)

    async def _prove_head(self, proof: _Proof, directory: ClusterDirectory, head: KeyRange) -> None:
        """What lies before the first subscriber that is known is empty, or is delivered to from here."""
        if await self._directories.is_empty(directory, *head):
            self._account(proof, (head,))
        elif proof.gaps and proof.carried.within is None:
            self._deliver(proof, head)

    def _deliver(self, proof: _Proof, part: KeyRange) -> None:
        left_s = self._left_s(proof)
        if left_s <= 0:
            return
        proof.delivering += (part,)

        def on_outcome(outcome: Outcome) -> None:
            proof.delivering = without(proof.delivering, (part,))
            self._account(proof, without((part,), outcome.gaps))

        within = proof.carried.within
        plan = PROVEN if within is None else msgspec.structs.replace(PROVEN, within=within)
        self._ranges.deliver(*part, msgspec.msgpack.encode(proof.carried), left_s, on_outcome, plan)

    def _left_s(self, proof: _Proof) -> float:
        return (proof.ends_at - self._host.now()) * PART_OF_TIME

    @handles(Proven)
    def on_proven(self, _sender: Address, told: Proven) -> Reply:
        for proof in tuple(self._proofs.get((told.origin, told.number), ())):
            self._account(proof, told.ranges)
        return None

    def _account(self, proof: _Proof, ranges: tuple[KeyRange, ...]) -> None:
        if proof.gaps:
            proof.gaps = without(proof.gaps, ranges)
            if not proof.gaps:
                self._conclude(proof)

    def _conclude(self, proof: _Proof) -> None:
        name = (proof.carried.origin, proof.carried.number)
        left = [other for other in self._proofs.pop(name, ()) if other is not proof]
        if left:
            self._proofs[name] = left
        gaps, proof.gaps = proof.gaps, ()
        proof.on_end(gaps)

    async def _sweep(self) -> None:
        """Goes back to the gaps, and ends what takes too long."""
        while self._proofs:
            await self._host.sleep(SWEEP_S)
            now = self._host.now()
            for proof in [proof for proofs in self._proofs.values() for proof in proofs]:
                if now >= proof.ends_at:
                    self._conclude(proof)
                elif now >= proof.again_at:
                    proof.again_at = now + REISSUE_S
                    self._issue(proof)
        self._is_sweeping = False
