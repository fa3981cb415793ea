"""The directory: a registrar for each client id, the holder before, and what becomes of entries when registrars go."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from itertools import chain, pairwise, repeat
from typing import Any

import pytest

from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_entries import ENTRY_KEPT_S, REGISTER_S
from braidmq.braid.roaming.directory_messages import Claim, Claimed, Client, Copies, Register, SessionHolder
from braidmq.braid.roaming.hash_ranges import hash_key_of, registrar_key_of
from braidmq.host import Address, Message
from braidmq.sim.network import Faults, Network, Uniform
from tests.simulated import BUILDS, AnyOverlay, OverlayNetwork

CLIENTS = [f"client{number}" for number in range(60)]


def clients(epochs: dict[str, int], owner: str = "") -> list[Client]:
    return [Client(client_id, epoch, owner) for client_id, epoch in epochs.items()]


class DirectoryNetwork(OverlayNetwork[AnyOverlay]):
    """Directories alone, without the core of a broker."""

    def __init__(self, count: int, seed: int = 1, network: Network | None = None, overlay: str = "skip_graph") -> None:
        super().__init__(BUILDS[overlay], seed, network or Uniform(0.001, 0.02))
        self.all: dict[int, ClientDirectory] = {}
        self.calls = 0
        self.sim.on_message = self._count
        for number in range(count):
            self.enter(number)

    def enter(self, number: int) -> None:
        overlay = self.start(number, [b"\0home\0%d" % number])
        directory = ClientDirectory(overlay, f"site{number}", lambda: 1_800_000_000.0 + self.sim.now)
        self.all[number] = directory
        self.run(2)
        self.answer_of(number, directory.enter(), 60)

    def answer_of(self, number: int, procedure: Coroutine[Any, Any, Any], seconds: float = 20) -> Any:
        """What comes of a procedure of one of them."""
        results: list[Any] = []

        async def run() -> None:
            results.append(await procedure)

        self.do(number, run())
        ends_at = self.sim.now + seconds
        while not results and self.sim.now < ends_at:
            self.run(0.05)
        assert results, f"site {number} got no answer"
        return results[0]

    def claim(self, number: int, client_id: str) -> Claimed:
        claimed = self.answer_of(number, self.all[number].claim(client_id))
        assert isinstance(claimed, Claimed)
        return claimed

    def crash(self, address: Address) -> None:
        super().crash(address)
        del self.all[int(address)]

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


OVERLAYS = pytest.mark.parametrize("overlay", BUILDS)


@OVERLAYS
def test_a_claim_tells_who_was_there_before(overlay: str) -> None:
    network = DirectoryNetwork(6, overlay=overlay)
    for index, client_id in enumerate(CLIENTS):
        assert network.claim(index % 6, client_id).before is None
    for index, client_id in enumerate(CLIENTS):
        claimed = network.claim((index + 1) % 6, client_id)
        assert claimed.before is not None
        assert (claimed.before.address, claimed.before.name) == (index % 6, f"site{index % 6}")
        assert claimed.epoch > claimed.before.epoch
        assert claimed.earlier is None
        again = network.claim((index + 2) % 6, client_id)
        assert again.before is not None
        assert again.earlier == claimed.before


@OVERLAYS
def test_the_registrar_and_its_heir_have_the_entry_and_nobody_else(overlay: str) -> None:
    network = DirectoryNetwork(6, overlay=overlay)
    for client_id in CLIENTS:
        network.claim(3, client_id)
    for client_id in CLIENTS:
        registrar = network.registrar(client_id)
        having = [number for number in network.all if network.keeps(number, client_id)]
        assert sorted(having) == sorted([registrar, network.heir(registrar)])
    first = min(registrar_key_of(one.name) for one in network.all.values())
    assert any(hash_key_of(one) < first for one in CLIENTS), "some client ids come before the first registrar"


def test_a_claim_that_comes_twice_is_answered_alike() -> None:
    network = DirectoryNetwork(4)
    network.claim(0, "ada")
    registrar = network.registrar("ada")
    claim = Claim("ada", "site2", 5, 77, False)
    answers = [network.all[registrar].registrar.on_claim(2, claim) for _ in range(3)]
    assert isinstance(answers[0], Claimed)
    assert answers[0].before is not None
    assert answers[0].before.name == "site0"
    assert answers == [answers[0]] * 3


def test_a_claim_that_is_not_wanted_any_more_changes_nothing() -> None:
    network = DirectoryNetwork(4)
    for client_id in CLIENTS[:12]:
        wanted = chain([True], repeat(False))  # until the registrar is known
        claim = network.all[1].claim(client_id, is_wanted=partial(next, wanted))
        assert network.answer_of(1, claim) is None
        assert all(client_id not in one.registrar._entries for one in network.all.values())


def test_a_registrar_that_comes_later_has_its_entries() -> None:
    network = DirectoryNetwork(3)
    for client_id in CLIENTS:
        network.claim(1, client_id)
    for number in (3, 4, 5):
        network.enter(number)
        moved = [one for one in CLIENTS if network.registrar(one) == number]
        for client_id in moved:
            assert network.keeps(number, client_id) is not None
    for client_id in CLIENTS:
        before = network.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


def test_a_registrar_that_leaves_hands_its_entries_over() -> None:
    network = DirectoryNetwork(5)
    for client_id in CLIENTS:
        network.claim(1, client_id)
    for number in (4, 3):
        network.answer_of(number, network.all[number].registrar.leave())
        network.crash(number)
    for client_id in CLIENTS:
        before = network.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


@OVERLAYS
def test_the_heir_answers_for_a_registrar_that_has_crashed(overlay: str) -> None:
    network = DirectoryNetwork(6, overlay=overlay)
    for client_id in CLIENTS:
        network.claim(1, client_id)
    network.run(15)
    gone = next(number for number in (network.registrar(one) for one in CLIENTS) if number not in (1, 2))
    ids = [one for one in CLIENTS if network.registrar(one) == gone]
    network.crash(gone)
    before = network.claim(2, ids[0]).before
    assert before is not None
    assert before.name == "site1"
    network.run(60)
    for client_id in ids[1:]:
        before = network.claim(2, client_id).before
        assert before is not None
        assert before.name == "site1"


def test_entries_come_back_with_the_next_registration() -> None:
    network = DirectoryNetwork(6)
    epochs = {client_id: network.claim(1, client_id).epoch for client_id in CLIENTS}
    registrar = next(number for number in map(network.registrar, CLIENTS) if number != 1 and network.heir(number) != 1)
    gone = (registrar, network.heir(registrar))
    ids = [one for one in CLIENTS if network.registrar(one) in gone]
    for number in gone:
        network.crash(number)
    network.run(60)
    assert any(network.keeps(network.registrar(one), one) is None for one in ids)
    assert network.answer_of(1, network.all[1].register(clients(epochs)), 60) == []
    for client_id in CLIENTS:
        holder = network.keeps(network.registrar(client_id), client_id)
        assert holder == SessionHolder(client_id, 1, "site1", epochs[client_id])


def test_registering_tells_who_has_overtaken_and_who_was_overtaken() -> None:
    network = DirectoryNetwork(4)
    mine, theirs = network.claim(0, "ada").epoch, network.claim(1, "ada").epoch
    known = network.answer_of(0, network.all[0].register(clients({"ada": mine})))
    assert known == [SessionHolder("ada", 1, "site1", theirs)]
    assert network.answer_of(0, network.all[0].register(clients({"ada": theirs + 5}))) == known
    assert network.answer_of(1, network.all[1].register(clients({"ada": theirs}))) == [
        SessionHolder("ada", 0, "site0", theirs + 5)
    ]
    assert network.answer_of(0, network.all[0].register(clients({"ada": 1}))) == [
        SessionHolder("ada", 0, "site0", theirs + 5)
    ]


def test_entries_that_nobody_repeats_are_forgotten() -> None:
    network = DirectoryNetwork(3)
    epochs = {client_id: network.claim(1, client_id).epoch for client_id in CLIENTS}
    kept = dict(list(epochs.items())[:10])
    for _ in range(int(ENTRY_KEPT_S / REGISTER_S) + 2):
        network.run(REGISTER_S)
        network.answer_of(1, network.all[1].register(clients(kept)))
        for one in network.all.values():
            one.registrar.expire()
    assert {client_id for one in network.all.values() for client_id in one.registrar._entries} == set(kept)


def test_repeating_costs_what_has_changed() -> None:
    network = DirectoryNetwork(5)
    epochs = {f"device{number}": network.claim(1, f"device{number}").epoch for number in range(300)}
    told: list[str] = []

    def note(_sender: Address, _to: Address, message: Message, _hops: int) -> None:
        if isinstance(message, Register):
            told.extend(client.client_id for client in message.clients)
        elif isinstance(message, Copies):
            told.extend(entry.holder.client_id for entry in message.entries)

    def register() -> list[str]:
        told.clear()
        others = network.answer_of(1, network.all[1].register(clients(epochs)))
        assert {one.name for one in others} <= {"site1"}
        network.run(2)
        return sorted(told)

    register()
    network.sim.on_message = note
    assert register() == []
    changed = next(one for one in epochs if network.registrar(one) not in (1, network.heir(1)))
    epochs[changed] += 1
    again = register()
    assert changed in again
    assert len(again) <= 300 // 20
    for _ in range(int(ENTRY_KEPT_S / REGISTER_S) + 2):
        network.run(REGISTER_S)
        register()
        for one in network.all.values():
            one.registrar.expire()
    for client_id in epochs:
        registrar = network.registrar(client_id)
        for number in (registrar, network.heir(registrar)):
            assert network.keeps(number, client_id) == SessionHolder(client_id, 1, "site1", epochs[client_id])


def test_other_mirrors_of_a_holder_are_told_once_for_all_of_its_clients() -> None:
    network = DirectoryNetwork(5)
    epochs = {client_id: network.claim(1, client_id).epoch for client_id in CLIENTS}
    network.all[1].mirrors = lambda: (3, 4)
    registered: list[Client] = []
    network.sim.on_message = lambda _sender, _to, message, _hops: registered.extend(
        message.clients if isinstance(message, Register) else ()
    )
    network.answer_of(1, network.all[1].register(clients(epochs)))
    network.run(2)
    assert registered == []
    for client_id in CLIENTS:
        registrar = network.registrar(client_id)
        for number in (registrar, network.heir(registrar)):
            holder = network.keeps(number, client_id)
            assert holder is not None
            assert holder.mirrors == (3, 4)


def test_what_a_registrar_or_its_heir_has_lost_is_told_again() -> None:
    network = DirectoryNetwork(5)
    epochs = {client_id: network.claim(1, client_id).epoch for client_id in CLIENTS}
    network.answer_of(1, network.all[1].register(clients(epochs)))
    lost = {client_id: network.registrar(client_id) for client_id in CLIENTS[::7]}
    for client_id, registrar in lost.items():
        for number in (registrar, network.heir(registrar)):
            entries = network.all[number].registrar._entries
            entries._on_drop(client_id, entries._entries.pop(client_id))
    assert network.answer_of(1, network.all[1].register(clients(epochs))) == []
    network.run(2)
    for client_id, registrar in lost.items():
        for number in (registrar, network.heir(registrar)):
            assert network.keeps(number, client_id) == SessionHolder(client_id, 1, "site1", epochs[client_id])


def test_a_claim_is_one_lookup_and_one_call() -> None:
    network = DirectoryNetwork(16)
    network.calls = 0
    start = sum(one.ranges.lookups for one in network.all.values())
    hops = sum(one.ranges.hops for one in network.all.values())
    for client_id in CLIENTS:
        network.claim(5, client_id)
    assert network.calls <= len(CLIENTS) + 16, "one call each, and one more for a registrar that has come since"
    assert sum(one.ranges.lookups for one in network.all.values()) - start <= 16
    assert sum(one.ranges.hops for one in network.all.values()) - hops <= 16 * 5


@pytest.mark.parametrize("seed", range(4))
def test_claims_are_in_one_order_whatever_is_lost(seed: int) -> None:
    network = DirectoryNetwork(5, seed, Faults.parse("loss=0.02,dup=0.02").over(Uniform(0.001, 0.02)))
    network.run(20)
    claims = [(number % 5, network.claim(number % 5, "ada")) for number in range(40)]
    for (number, one), (_, following) in pairwise(claims):
        assert following.before is not None
        assert (following.before.address, following.before.epoch) == (number, one.epoch), f"seed {seed}"
        assert following.epoch > one.epoch, f"seed {seed}"
