"""The directory: a registrar for each client id, the holder before, and what becomes of entries when registrars go."""

from __future__ import annotations

from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_messages import Claim, Claimed, Client, SessionHolder
from braidmq.braid.roaming.hash_ranges import hash_key_of, registrar_key_of
from braidmq.braid.roaming.registrar import ENTRY_KEPT_S, REGISTER_S
from braidmq.host import Address, Message
from braidmq.overlay import Overlay
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import Suzaku
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Faults, Network, Uniform

CLIENTS = [f"client{number}" for number in range(60)]


def clients(epochs: dict[str, int], owner: str = "") -> list[Client]:
    return [Client(client_id, epoch, owner) for client_id, epoch in epochs.items()]


class Town:
    """Directories alone, without brokers."""

    def __init__(self, count: int, seed: int = 1, network: Network | None = None, kind: str = "skip") -> None:
        self.sim = Simulator(seed, network or Uniform(0.001, 0.02))
        self.kind = kind
        self.all: dict[int, ClientDirectory] = {}
        self.calls = 0
        self.sim.on_message = self._count
        for number in range(count):
            self.add(number)

    def add(self, number: int) -> ClientDirectory:
        host = self.sim.host(number)
        others = list(self.all)

        def introduce() -> Address | None:
            return self.sim.chance.choice(others) if others else None

        overlay: Overlay
        if self.kind == "suzaku":
            overlay = Suzaku(host, introduce, host.incarnation)
        else:
            make = SkipGraph if self.kind == "skip" else FlexibleGraph
            overlay = make(host, self.sim.chance.getrandbits(DIGITS_MAX), introduce, host.incarnation)
        directory = ClientDirectory(overlay, f"site{number}", lambda: 1_800_000_000.0 + self.sim.now)
        self.all[number] = directory
        if others:
            host.spawn(_stand_first(overlay, b"\0home\0%d" % number))
        else:
            overlay.found(b"\0home\0%d" % number)
        self.sim.run(self.sim.now + 2)
        self.do(number, directory.enter(), 60)
        return directory

    def do(self, number: int, procedure: Coroutine[Any, Any, Any], seconds: float = 20) -> Any:
        """What comes of a procedure of one of them."""
        results: list[Any] = []

        async def run() -> None:
            results.append(await procedure)

        self.all[number].host.spawn(run())
        ends_at = self.sim.now + seconds
        while not results and self.sim.now < ends_at:
            self.sim.run(self.sim.now + 0.05)
        assert results, f"site {number} got no answer"
        return results[0]

    def claim(self, number: int, client_id: str) -> Claimed:
        claimed = self.do(number, self.all[number].claim(client_id))
        assert isinstance(claimed, Claimed)
        return claimed

    def crash(self, number: int) -> None:
        self.sim.hosts[number].crash()
        del self.all[number]

    def registrar(self, client_id: str) -> int:
        """Whose entry it is, by the rule."""
        keys = sorted((registrar_key_of(one.name), number) for number, one in self.all.items())
        before = [number for key, number in keys if key <= hash_key_of(client_id)]
        return before[-1] if before else keys[0][1]

    def heir(self, registrar: int) -> int:
        keys = [
            number for _, number in sorted((registrar_key_of(one.name), number) for number, one in self.all.items())
        ]
        at = keys.index(registrar)
        return keys[at - 1] if at else keys[1]

    def keeps(self, number: int, client_id: str) -> SessionHolder | None:
        entry = self.all[number].registrar._entries.get(client_id)
        return None if entry is None else entry.holder

    def _count(self, _sender: Address, _to: Address, message: Message, _hops: int) -> None:
        self.calls += isinstance(message, Claim)


async def _stand_first(overlay: Overlay, key: bytes) -> None:
    await overlay.join(key)


KINDS = pytest.mark.parametrize("kind", ["skip", "suzaku", "flexible"])


@KINDS
def test_a_claim_tells_who_was_there_before(kind: str) -> None:
    town = Town(6, kind=kind)
    for index, client_id in enumerate(CLIENTS):
        assert town.claim(index % 6, client_id).before is None
    for index, client_id in enumerate(CLIENTS):
        claimed = town.claim((index + 1) % 6, client_id)
        assert claimed.before is not None
        assert (claimed.before.address, claimed.before.name) == (index % 6, f"site{index % 6}")
        assert claimed.epoch > claimed.before.epoch
        assert claimed.earlier is None
        again = town.claim((index + 2) % 6, client_id)
        assert again.before is not None
        assert again.earlier == claimed.before


@KINDS
def test_the_registrar_and_its_heir_have_the_entry_and_nobody_else(kind: str) -> None:
    town = Town(6, kind=kind)
    for client_id in CLIENTS:
        town.claim(3, client_id)
    for client_id in CLIENTS:
        registrar = town.registrar(client_id)
        having = [number for number in town.all if town.keeps(number, client_id)]
        assert sorted(having) == sorted([registrar, town.heir(registrar)])
    first = min(registrar_key_of(one.name) for one in town.all.values())
    assert any(hash_key_of(one) < first for one in CLIENTS), "some client ids come before the first registrar"


def test_a_claim_that_comes_twice_is_answered_alike() -> None:
    town = Town(4)
    town.claim(0, "ada")
    registrar = town.registrar("ada")
    claim = Claim("ada", "site2", 5, 77, False)
    answers = [town.all[registrar].registrar.on_claim(2, claim) for _ in range(3)]
    assert isinstance(answers[0], Claimed)
    assert answers[0].before is not None
    assert answers[0].before.name == "site0"
    assert answers == [answers[0]] * 3


def test_a_registrar_that_comes_later_has_its_entries() -> None:
    town = Town(3)
    for client_id in CLIENTS:
        town.claim(1, client_id)
    for number in (3, 4, 5):
        town.add(number)
        moved = [one for one in CLIENTS if town.registrar(one) == number]
        for client_id in moved:
            assert town.keeps(number, client_id) is not None
    for client_id in CLIENTS:
        before = town.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


def test_a_registrar_that_leaves_hands_its_entries_over() -> None:
    town = Town(5)
    for client_id in CLIENTS:
        town.claim(1, client_id)
    for number in (4, 3):
        town.do(number, town.all[number].registrar.leave())
        town.crash(number)
    for client_id in CLIENTS:
        before = town.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


@KINDS
def test_the_heir_answers_for_a_registrar_that_has_crashed(kind: str) -> None:
    town = Town(6, kind=kind)
    for client_id in CLIENTS:
        town.claim(1, client_id)
    town.sim.run(town.sim.now + 15)
    gone = next(number for number in (town.registrar(one) for one in CLIENTS) if number not in (1, 2))
    ids = [one for one in CLIENTS if town.registrar(one) == gone]
    town.crash(gone)
    before = town.claim(2, ids[0]).before
    assert before is not None
    assert before.name == "site1"
    town.sim.run(town.sim.now + 60)
    for client_id in ids[1:]:
        before = town.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


def test_entries_come_back_with_the_next_registration() -> None:
    town = Town(6)
    epochs = {client_id: town.claim(1, client_id).epoch for client_id in CLIENTS}
    registrar = next(number for number in map(town.registrar, CLIENTS) if number != 1 and town.heir(number) != 1)
    gone = (registrar, town.heir(registrar))
    ids = [one for one in CLIENTS if town.registrar(one) in gone]
    for number in gone:
        town.crash(number)
    town.sim.run(town.sim.now + 60)
    assert any(town.keeps(town.registrar(one), one) is None for one in ids)
    assert town.do(1, town.all[1].register(clients(epochs)), 60) == []
    for client_id in CLIENTS:
        holder = town.keeps(town.registrar(client_id), client_id)
        assert holder == SessionHolder(client_id, 1, "site1", epochs[client_id])


def test_registering_tells_who_has_overtaken_and_who_was_overtaken() -> None:
    town = Town(4)
    mine, theirs = town.claim(0, "ada").epoch, town.claim(1, "ada").epoch
    known = town.do(0, town.all[0].register(clients({"ada": mine})))
    assert known == [SessionHolder("ada", 1, "site1", theirs)]
    assert town.do(0, town.all[0].register(clients({"ada": theirs + 5}))) == known
    assert town.do(1, town.all[1].register(clients({"ada": theirs}))) == [SessionHolder("ada", 0, "site0", theirs + 5)]
    assert town.do(0, town.all[0].register(clients({"ada": 1}))) == [SessionHolder("ada", 0, "site0", theirs + 5)]


def test_entries_that_nobody_repeats_are_forgotten() -> None:
    town = Town(3)
    epochs = {client_id: town.claim(1, client_id).epoch for client_id in CLIENTS}
    kept = dict(list(epochs.items())[:10])
    for _ in range(int(ENTRY_KEPT_S / REGISTER_S) + 2):
        town.sim.run(town.sim.now + REGISTER_S)
        town.do(1, town.all[1].register(clients(kept)))
        for one in town.all.values():
            one.registrar.expire()
    assert {client_id for one in town.all.values() for client_id in one.registrar._entries} == set(kept)


def test_a_claim_is_one_lookup_and_one_call() -> None:
    town = Town(16)
    town.calls = 0
    start = sum(one.ranges.lookups for one in town.all.values())
    hops = sum(one.ranges.hops for one in town.all.values())
    for client_id in CLIENTS:
        town.claim(5, client_id)
    assert town.calls <= len(CLIENTS) + 16, "one call each, and one more for a registrar that has come since"
    assert sum(one.ranges.lookups for one in town.all.values()) - start <= 16
    assert sum(one.ranges.hops for one in town.all.values()) - hops <= 16 * 5


@pytest.mark.parametrize("seed", range(4))
def test_claims_are_in_one_order_whatever_is_lost(seed: int) -> None:
    town = Town(5, seed, Faults.parse("loss=0.02,dup=0.02").over(Uniform(0.001, 0.02)))
    town.sim.run(town.sim.now + 20)
    claims = [(number % 5, town.claim(number % 5, "ada")) for number in range(40)]
    for (number, one), (_, following) in pairwise(claims):
        assert following.before is not None
        assert (following.before.address, following.before.epoch) == (number, one.epoch), f"seed {seed}"
        assert following.epoch > one.epoch, f"seed {seed}"
