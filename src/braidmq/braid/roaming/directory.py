"""The directory: which broker has which client id.

A client id is one client's anywhere in the braid, so a broker that gets its CONNECT must find out which broker had it
before. Every broker stands in the overlay once more, at a hash of its name, and is the registrar of the client ids
whose hashes lie between its own and the next broker's:

      …  other keys │ $braid/dir 1f… b   $braid/dir 6c… a   $braid/dir d0… c │ other keys  …
                      ◀─────── b ───────▶◀────── a ────────▶◀───── c ──────▶

What lies before the first of them is the first one's, too: a lookup that ends before the segment has it on its right.

Entries are soft. A claim (at CONNECT) is answered with the holder before it and gets a higher epoch; holders repeat
what they have now and then, so that what a crash took away comes back, and learn which were overtaken. Each registrar
sends a copy of what it is told to the neighbour that will inherit from it. A registrar that does not answer is passed
by: its heir is asked instead. Two claims that met different registrars are told apart by their epochs, which follow the
clock.

An entry says whose the session is. The claim of another user changes nothing: the claimant is told of the holder, asks
there whether it has the session still, and only then claims it over that holder. Where a partition has let two users
have the same client id after all, the one that came first keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from braidmq.braid.roaming.directory_entries import bucket_of, digests_of, merged
from braidmq.braid.roaming.directory_messages import (
    PAGE_MAX,
    BucketDigest,
    Claim,
    Claimed,
    Client,
    ConfirmEntries,
    EntriesConfirmed,
    NotMine,
    Register,
    Registered,
    SessionHolder,
    TryAgain,
)
from braidmq.braid.roaming.hash_ranges import HIGH, LOW, HashRange, HashRanges, hash_key_of
from braidmq.braid.roaming.registrar import Registrar, ask_registrar
from braidmq.braid.round_trips import RoundTrips
from braidmq.host import Address, Host, Reply
from braidmq.keys import Key
from braidmq.overlay import Overlay, Peer

SLOW_S = 0.05
"""After how long without an answer of a registrar its heir is asked to stand in for it."""

REGISTER_ROUNDS = 4
"""How often registering looks for the registrars of those that are left."""

AT_ONCE = 500
"""Clients whose registrars are looked for in one turn."""

AGAIN_S = 0.05
"""How long to wait for a registrar that is just taking over."""

TRIES_MAX = 100
"""How often a registrar may say that it is not ready, or not the one."""

HINTS_MAX = 2
"""How often a registrar's word for another one is taken, before that is looked up."""

WARM_MAX = 64
"""Registrars that are looked up by a broker that enters, before it needs them."""


class ClientDirectory:
    """One broker's way to the registrars; its own one is `registrar`."""

    def __init__(self, overlay: Overlay, name: str, now: Callable[[], float], identity: str = "") -> None:
        """`now` is Unix time: epochs follow it. `identity` stands for this broker in entries, if it is not the name."""
        self.host: Host = overlay.host
        self.name = identity or name
        self.round_trips = RoundTrips(self.host)
        self.registrar = Registrar(overlay, name, self.round_trips, identity)
        self.ranges = HashRanges(overlay)
        self.mirrors: Callable[[], tuple[Address, ...]] = tuple
        """The brokers that have a copy of what this one has: told with each entry."""
        self._now = now

    async def enter(self) -> None:
        """This broker becomes a registrar, and gets to know other registrars soon."""
        await self.registrar.enter()
        self.host.spawn(self._meet_registrars())

    async def _meet_registrars(self) -> None:
        hash_key = LOW
        for _ in range(WARM_MAX):
            hash_range = await self.ranges.find(hash_key)
            if hash_range is None or hash_range.high == HIGH:
                break
            hash_key = hash_range.high

    async def claim(
        self,
        client_id: str,
        owner: str = "",
        over: int = 0,
        giver: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
        given: int = 0,
    ) -> Claimed | None:
        """Makes this broker the holder of a client id; which broker was it before. None if no registrar answered.

        With a `giver`, only if that broker is the holder until now, or has what is as new (`given`); and no longer than
        it `is_wanted`: a claim that comes late would take the client from where it has gone since.
        """
        hash_key = hash_key_of(client_id)
        epoch = int(self._now() * 1000)
        number = self.host.chance.getrandbits(62)
        hints = 0
        for _ in range(TRIES_MAX):
            hash_range = await self.ranges.find(hash_key)
            if hash_range is None or not is_wanted():
                return None
            stands_in = self.ranges.is_silent(hash_range.registrar.address)
            claim = Claim(
                client_id, self.name, epoch, number, stands_in, owner, over, giver, self.mirrors(), given=given
            )
            ask_for = self._ask if stands_in else self._ask_either
            answer = await ask_for(hash_range, claim, is_wanted)
            if isinstance(answer, Claimed):
                return answer
            if isinstance(answer, TryAgain):
                await self.host.sleep(AGAIN_S)
            elif isinstance(answer, NotMine):
                hints += 1
                self.ranges.refine(hash_range, answer.registrar if hints <= HINTS_MAX else None)
            elif stands_in:
                return None
        return None

    def is_silent(self, broker: Address) -> bool:
        """Whether a broker was asked as a registrar just now, and did not answer."""
        return self.ranges.is_silent(broker)

    async def _ask_either(self, hash_range: HashRange, claim: Claim, is_wanted: Callable[[], bool]) -> Reply:
        """Asks the registrar and, if that is slow to answer, has its heir stand in for it should it be gone: a client
        waits. Whoever answers first."""
        answers: list[Reply] = []
        answered = self.host.event()

        async def ask_registrar_alone() -> None:
            answers.append(await self._ask(hash_range, claim, is_wanted))
            answered.set()

        async def ask_heir() -> None:
            to = await self.ranges.heir_of(hash_range)
            request = msgspec.structs.replace(claim, stands_in=True, slow=hash_range.registrar.address)
            while to is not None and not answers and is_wanted():
                answer = await self._answer_of(to, request, is_wanted)
                if isinstance(answer, Claimed):
                    self.ranges.note_silent(hash_range.registrar)
                    answers.append(answer)
                    answered.set()
                elif not isinstance(answer, TryAgain):
                    return
                await self.host.sleep(AGAIN_S)

        self.host.spawn(ask_registrar_alone())
        if not await answered.wait(SLOW_S):
            self.host.spawn(ask_heir())
            await answered.wait()
        return answers[0]

    async def register(self, clients: Iterable[Client]) -> list[SessionHolder] | None:
        """Repeats what this broker holds; what registrars know otherwise. None if a registrar did not answer."""
        left = {client.client_id: client for client in clients}
        others: list[SessionHolder] = []
        for hash_range, group in await self._by_registrar(left):
            for client_id in await self._confirmed(hash_range, group):
                del left[client_id]
        for _ in range(REGISTER_ROUNDS):
            if not left:
                return others
            for hash_range, group in await self._by_registrar(left):
                for start in range(0, len(group), PAGE_MAX):
                    answer = await self._register_page(hash_range, group[start : start + PAGE_MAX])
                    if answer is not None:
                        others += answer.others
                        for client_id, *_ in group[start : start + PAGE_MAX]:
                            if client_id not in answer.not_mine:
                                del left[client_id]
        return None if left else others

    async def _by_registrar(self, clients: dict[str, Client]) -> list[tuple[HashRange, list[Client]]]:
        groups: dict[Key, tuple[HashRange, list[Client]]] = {}
        for number, (client_id, client) in enumerate(clients.items(), 1):
            if number % AT_ONCE == 0:
                await self.host.sleep(0)
            hash_range = await self.ranges.find(hash_key_of(client_id))
            if hash_range is not None:
                groups.setdefault(hash_range.low, (hash_range, []))[1].append(client)
        return list(groups.values())

    async def _confirmed(self, hash_range: HashRange, group: list[Client]) -> list[str]:
        """The client ids of which a registrar knows just what it would be told."""
        digests: list[BucketDigest] = []
        for start in range(0, len(group), AT_ONCE):
            digests += digests_of(group[start : start + AT_ONCE])
            await self.host.sleep(0)
        request = ConfirmEntries(
            self.name,
            self.host.address,
            self.mirrors(),
            hash_range.low,
            hash_range.high,
            merged(digests),
            self.ranges.is_silent(hash_range.registrar.address),
        )
        answer = await self._ask(hash_range, request)
        if not isinstance(answer, EntriesConfirmed):
            return []
        differing = set(answer.differing)
        return [client_id for client_id, *_ in group if bucket_of(client_id) not in differing]

    async def _register_page(self, hash_range: HashRange, page: list[Client]) -> Registered | None:
        stands_in = self.ranges.is_silent(hash_range.registrar.address)
        answer = await self._ask(hash_range, Register(self.name, tuple(page), stands_in, self.mirrors()))
        if isinstance(answer, TryAgain):
            await self.host.sleep(AGAIN_S)
        if not isinstance(answer, Registered):
            return None
        if answer.not_mine:
            self.ranges.forget(hash_range.low)
        return answer

    async def _ask(
        self,
        hash_range: HashRange,
        request: Claim | Register | ConfirmEntries,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Reply:
        """Asks the registrar of a hash range, or its heir if that is to stand in for it. None if it is silent."""
        to = await self.ranges.heir_of(hash_range) if request.stands_in else hash_range.registrar
        answer = None if to is None else await self._answer_of(to, request, is_wanted)
        if answer is None and is_wanted():
            self.ranges.note_silent(hash_range.registrar)
        return answer

    async def _answer_of(
        self, to: Peer, request: Claim | Register | ConfirmEntries, is_wanted: Callable[[], bool]
    ) -> Reply:
        if to.address == self.host.address:
            return self._answer(request) if is_wanted() else None
        return await ask_registrar(self.host, to.address, request, is_wanted)

    def _answer(self, request: Claim | Register | ConfirmEntries) -> Reply:
        if isinstance(request, Claim):
            return self.registrar.on_claim(self.host.address, request)
        if isinstance(request, ConfirmEntries):
            return self.registrar.on_confirm_entries(self.host.address, request)
        return self.registrar.on_register(self.host.address, request)
