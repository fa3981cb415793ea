"""A broker is the one that its store says, at another address and under another name; a name that is taken is taken."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from braidmq.braid.catch_up.reconcile import REGULARLY_S
from braidmq.braid.identity import IDENTITY_ROW, BrokerIdentity, identity_of
from braidmq.braid.membership.introducers import PARTED_S
from braidmq.braid.membership.upkeep import COMPARE_S
from braidmq.broker.broker import Broker
from braidmq.broker.journal_store import JournalStore
from braidmq.config.naming import lasting_address
from braidmq.config.settings import BraidConfig
from braidmq.sim.checkers.ring import ring_is_closed_and_sorted
from tests.conformance.pair import persistent
from tests.conformance.wire import V5

from .sites import Sites, payloads

METHODS = pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku", "adaptive"])


def with_session(folder: Path, method: str = "relayfree") -> tuple[Sites, JournalStore]:
    """Three sites, and site 7 with a store, where the client `ada` has a session that is subscribed to tide."""
    sites = Sites(3, method=method)
    store = JournalStore(folder / "site7")
    sites.add(7, store=store)
    sites.run(20)
    client = sites.client(7, "ada", version=V5, **persistent(V5))
    client.subscribe("tide", 1)
    client.drop()
    return sites, store


def move(sites: Sites, folder: Path, old: int, new: int) -> None:
    """The store of a site that has crashed is started elsewhere, under another name."""
    sites.add(new, store=JournalStore(folder / f"site{old}"))
    assert sites[new].braid.name == f"site{new}"
    assert sites[new].braid.identity.startswith(f"site{old}#")


@METHODS
def test_a_session_is_still_there_at_another_address_under_another_name(tmp_path: Path, method: str) -> None:
    sites, store = with_session(tmp_path, method)
    sites.client(7, "pub").publish("tide", b"before", 1)
    sites[7].crash()
    store.close()
    sites.client(0, "pub0").publish("tide", b"while it is down", 1)
    move(sites, tmp_path, 7, 8)
    sites.run(30)
    assert sites[8].braid.presence.is_in
    client = sites.client(8, "ada", version=V5, **persistent(V5))
    assert client.connack is not None
    assert client.connack.session_present
    sites.run(5)
    assert payloads(client) == [b"before", b"while it is down"]
    client.drop()
    sites.client(8, "pub").publish("tide", b"and after", 1)
    client = sites.client(1, "ada", version=V5, **persistent(V5))
    assert client.connack is not None
    assert client.connack.session_present, "others know where it is now"
    sites.run(5)
    assert payloads(client) == [b"and after"]


def test_what_was_published_before_the_move_is_fetched_from_the_new_address(tmp_path: Path) -> None:
    sites = Sites(3)
    stores = {number: JournalStore(tmp_path / f"site{number}") for number in (6, 7)}
    for number, store in stores.items():
        sites.add(number, store=store)
        sites.run(20)
    client = sites.client(6, "ada", version=V5, **persistent(V5))
    client.subscribe("tide", 1)
    sites.client(7, "pub").publish("tide", b"seen", 1)
    assert payloads(client) == [b"seen"]
    identity = sites[7].braid.identity
    sites.run(3 * COMPARE_S)
    assert sites[0].braid.catch_up.cursors.get(identity) is not None, "others have heard of it"
    sites[6].crash()
    stores[6].close()
    sites[7].client("pub2").publish("tide", b"missed", 1)
    sites[7].crash()
    stores[7].close()
    move(sites, tmp_path, 7, 8)
    sites.run(30)
    sites.add(6, store=JournalStore(tmp_path / "site6"))
    sites.run(60)
    client = sites.client(6, "ada", version=V5, **persistent(V5))
    sites.run(5)
    assert payloads(client) == [b"missed"]
    cursor = sites[6].braid.catch_up.cursors.get(identity)
    assert cursor is not None
    assert cursor.address == 8


def test_what_a_third_broker_says_of_an_address_does_not_count_while_the_known_one_answers() -> None:
    sites = Sites(3)
    listener = sites.client(1)
    listener.subscribe("tide", 1)
    sites.client(0).publish("tide", b"x", 1)
    origin = sites[0].braid.identity
    cursor = sites[1].braid.catch_up.cursors.get(origin)
    assert cursor is not None
    assert cursor.address == 0
    sites[1].braid.catch_up.heads.learn(2, [(origin, 99, 5)])
    assert (cursor.address, cursor.head) == (0, 5)
    sites[1].braid.catch_up.heads.learn(0, [(origin, 0, 6)])
    assert (cursor.address, cursor.head) == (0, 6)
    sites[1].braid.membership.admission.on_parted(0)
    sites[1].braid.catch_up.heads.learn(2, [(origin, 99, 6)])
    assert cursor.address == 99
    sites[1].braid.membership.admission.on_linked(origin, 0)
    assert cursor.address == 0


def test_one_that_has_left_is_asked_for_nothing_until_it_is_heard_of() -> None:
    sites = Sites(3)
    sites.client(1).subscribe("tide", 1)
    sites.client(2).publish("tide", b"x", 1)
    braid, origin = sites[1].braid, sites[2].braid.identity
    cursor = braid.catch_up.cursors.get(origin)
    assert cursor is not None
    sites[2].crash()
    braid.membership.admission.on_parted(2)
    assert not any(peer.address == 2 for node in braid.overlay.ring.nodes.values() for peer in node.known)
    assert 2 not in braid.membership.introducers.known
    cursor.head += 1  # something was not fetched in time
    asked_at = cursor.asked_at
    sites.run(2 * REGULARLY_S)
    assert cursor.asked_at == asked_at
    braid.catch_up.heads.learn(0, [(origin, 2, cursor.head + 1)])
    sites.run(2 * REGULARLY_S)
    assert cursor.asked_at > asked_at, "another broker has heard of it"
    braid.membership.admission.on_parted(2)
    asked_at = cursor.asked_at
    sites.run(PARTED_S + 2 * REGULARLY_S)
    assert cursor.asked_at > asked_at, "it may have come back unheard"


@METHODS
def test_a_name_that_is_taken_stays_out_until_it_is_free(method: str) -> None:
    sites = Sites(3, method=method)
    sites.names[9] = "site1"
    other = sites.add(9)
    sites.run(30)
    assert not other.braid.presence.is_in
    assert (
        other.braid.membership.admission.trouble == "the broker at 1 has the name 'site1', too: set another braid.name"
    )
    assert all(site.braid.membership.admission.trouble is None for site in sites if site is not other)
    linked = [node for site in sites if site is not other for node in site.braid.overlay.view.own.values()]
    assert ring_is_closed_and_sorted(linked) == []
    listener = sites.client(1)
    listener.subscribe("tide", 1)
    sites.client(2).publish("tide", b"x", 1)
    assert payloads(listener) == [b"x"]
    sites[1].crash()
    sites.run(60)
    assert other.braid.presence.is_in
    assert other.braid.membership.admission.trouble is None


class Life:
    """What one process learns and writes of who it is."""

    def __init__(self, folder: Path, row: object = None) -> None:
        """`row` is what it finds instead of what was written."""
        self.store = JournalStore(folder)
        if row is not None:
            self.store.save_cursor(IDENTITY_ROW, msgspec.msgpack.encode(row))
            self.store.commit()
        self.broker = Broker(clock=lambda: 0.0, wall=lambda: 1_800_000_000.0, store=self.store)

    def own(self, name: str | None = None, earlier_name: str | None = None) -> BrokerIdentity:
        own = identity_of(self.broker, Random(), name, earlier_name)
        self.broker.flush()
        self.store.close()
        return own


def test_who_a_broker_is_is_made_with_its_store_and_stays(tmp_path: Path) -> None:
    first = Life(tmp_path / "a").own(earlier_name="127.0.0.1:7883")
    assert first.name.startswith("broker-")
    assert first.identity == f"{first.name}#{first.history:x}"
    assert Life(tmp_path / "a").own() == first
    renamed = Life(tmp_path / "a").own("s2")
    assert (renamed.name, renamed.identity) == ("s2", first.identity)
    assert Life(tmp_path / "a").own() == renamed
    assert Life(tmp_path / "b").own().identity != first.identity
    assert Life(tmp_path / "c").own("s2").identity.startswith("s2#")


@pytest.mark.parametrize(
    ("name", "earlier_name", "called"), [("s2", "127.0.0.1:7883", "s2"), (None, "127.0.0.1:7883", "127.0.0.1:7883")]
)
def test_an_earlier_store_goes_on_under_the_name_that_it_had(
    tmp_path: Path, name: str | None, earlier_name: str, called: str
) -> None:
    own = Life(tmp_path, (0xABC, 1_700_000_000.0)).own(name, earlier_name)
    assert (own.name, own.identity, own.alive_at) == (called, f"{called}#abc", 1_700_000_000.0)


def test_an_earlier_store_without_a_name_that_could_be_known_gets_one(tmp_path: Path) -> None:
    own = Life(tmp_path, (0xABC, 1_700_000_000.0)).own()
    assert (own.name, own.identity, own.history) == ("broker-00000000", "broker-00000000#abc", 0xABC)


@pytest.mark.parametrize(
    ("listen", "advertise", "called"),
    [
        ("127.0.0.1:7883", None, "127.0.0.1:7883"),
        ("127.0.0.1:0", None, None),
        ("0.0.0.0:0", "b.example:7883", "b.example:7883"),
    ],
)
def test_an_earlier_version_called_a_broker_by_its_address(
    listen: str, advertise: str | None, called: str | None
) -> None:
    assert lasting_address(BraidConfig(listen=listen, advertise=advertise)) == called
