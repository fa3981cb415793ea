"""0x10 from the first publication on: an acknowledgement of MQTT 5 waits until it is known if a topic is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.roaming.takeover import ENTER_WAIT_S
from braidmq.braid.transfer.outbound import REST_S
from braidmq.broker.held_acknowledgements import DEMAND_WAIT_S
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.broker.store import StoreError
from braidmq.mqtt.reasons import Reason
from braidmq.sim.network import Constant, Partition
from tests.conformance import wire
from tests.conformance.pair import Peer, Received, Type, persistent
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

pytestmark = pytest.mark.usefixtures("both_kinds")

NOBODY = 0x10
METHODS = pytest.mark.parametrize("method", ["relayfree", "adaptive", "suzaku", "locality", "covers"])
QOS = pytest.mark.parametrize("qos", [1, 2])


def braid(method: str = "") -> Sites:
    return Sites(4, method=method, network=Constant(0.01))


def publication(topic: str, packet_id: int, qos: int = 1, payload: bytes = b"x", version: int = V5) -> bytes:
    return wire.publish(topic, payload, version=version, qos=qos, packet_id=packet_id)


def tell(sites: Sites, peer: Peer, *packets: bytes) -> list[Received]:
    """What a client sends in one piece, and what it is answered at once."""
    peer.connection.receive(b"".join(packets))
    sites.run(0.0)
    return peer.take()


def acknowledged(peer: Peer) -> list[tuple[int | None, int]]:
    """The packet ids that were acknowledged, in this order, and how."""
    return [(one.packet_id, one.reason) for one in peer.take() if one.type in (Type.PUBACK, Type.PUBREC)]


@METHODS
@QOS
def test_the_first_publication_that_nobody_wants_is_answered_so(method: str, qos: int) -> None:
    publisher = braid(method).client(1)
    assert [publisher.publish("tide", b"x", qos) for _ in range(3)] == 3 * [NOBODY]
    assert publisher.publish("tide/high", b"x", qos, retain=True) == NOBODY


@METHODS
@QOS
@pytest.mark.parametrize("topic_filter", ["tide/high", "tide/+", "#", "$share/group/tide/high"])
@pytest.mark.parametrize("where", [0, 1])
def test_the_first_publication_that_a_client_wants_is_not(method: str, qos: int, topic_filter: str, where: int) -> None:
    sites = braid(method)
    subscriber = sites.client(where, "s")
    subscriber.subscribe(topic_filter, 2)
    assert sites.client(1, "p").publish("tide/high", b"x", qos) == 0
    assert payloads(subscriber) == [b"x"]


def test_what_is_not_wanted_is_kept_all_the_same() -> None:
    sites = braid()
    assert sites.client(1, "p").publish("tide", b"kept", 1, retain=True) == NOBODY
    subscriber = sites.client(2, "s")
    subscriber.subscribe("tide")
    assert payloads(subscriber) == [b"kept"]


@QOS
def test_who_need_not_wait_does_not(qos: int) -> None:
    """3.1.1 has no words for it; and what a client here wants is wanted."""
    sites = braid()
    (answer,) = tell(sites, sites.client(1, "old", version=V3), publication("tide", 1, qos, version=V3))
    assert answer.type is (Type.PUBACK if qos == 1 else Type.PUBREC)
    sites.client(1, "s").subscribe("wind")
    publisher = sites.client(1, "p")
    assert [one.reason for one in tell(sites, publisher, publication("wind", 1, qos))] == [0]
    assert tell(sites, publisher, publication("rain", 2, qos)) == []


@pytest.mark.parametrize("method", ["scribe", "bayeux", "canmc"])
def test_where_demand_is_never_known_nobody_waits_for_it(method: str) -> None:
    sites = braid(method)
    assert [one.reason for one in tell(sites, sites.client(1), publication("tide", 1))] == [0]


def test_acknowledgements_keep_their_order() -> None:
    sites = braid()
    publisher = sites.client(1, "p")
    publisher.publish("known", b"x", 1)
    assert tell(sites, publisher, publication("known", 9)) != []
    packets = [
        publication("new", 1),
        publication("known", 2),
        publication("known", 3, 2),
        publication("new", 4, 2),
        publication("$in/nowhere/x", 5),
        publication("newer", 6),
        publication("known", 7),
    ]
    assert tell(sites, publisher, *packets[:3]) == []
    assert tell(sites, publisher, *packets[3:]) == []
    assert [one.type for one in tell(sites, publisher, wire.PINGREQ)] == [Type.PINGRESP], "it is read on"
    sites.run(1)
    expected = [(number, NOBODY) for number in (1, 2, 3, 4)] + [(5, 0x90), (6, NOBODY), (7, NOBODY)]
    assert acknowledged(publisher) == expected
    assert [one.reason for one in tell(sites, publisher, publication("known", 8))] == [NOBODY], "nothing waits now"


def test_a_thousand_topics_are_found_out_about_side_by_side() -> None:
    """As many as the Receive Maximum allows; one after the other would take a hundred times as long."""
    sites = braid()
    publisher = sites.client(1, "p")
    began_at = sites.sim.now
    publisher.publish("single", b"x", 1)
    tell(sites, publisher, *[publication(f"t/{number}", 1000 + number) for number in range(1000)])
    answered: list[tuple[int | None, int]] = []
    while len(answered) < 1000:
        sites.run(0.1)
        answered += acknowledged(publisher)
        assert sites.sim.now < began_at + 10
    assert [packet_id for packet_id, _ in answered] == list(range(1000, 2000))
    assert {reason for _, reason in answered} <= {0, NOBODY}
    assert answered[0] == (1000, NOBODY)


def test_who_cannot_be_told_in_time_is_told_nothing() -> None:
    sites = braid()
    publisher = sites.client(1, "p")
    for number in (0, 2, 3):
        sites[number].crash()
    assert tell(sites, publisher, publication("tide", 1)) == []
    sites.run(DEMAND_WAIT_S - 0.1)
    assert acknowledged(publisher) == []
    sites.run(0.2)
    sites.run(0.0)
    assert acknowledged(publisher) == [(1, 0)]
    assert [one.reason for one in tell(sites, publisher, publication("wind", 2))] == [0], "nobody waits for a while"
    sites.run(REST_S)
    assert tell(sites, publisher, publication("rain", 3)) == []


def test_a_broker_that_is_not_in_the_braid_yet_lets_nobody_wait_for_long() -> None:
    """It waits a moment with the CONNACK, since the client may have a session elsewhere, also if it reaches nobody."""
    for is_reached in (True, False):
        sites = braid()
        if not is_reached:
            sites.sim.network = Partition([[9]], sites.sim.now, sites.sim.now + 100, sites.sim.network)
        site = sites.add(9)
        publisher = site.peer()
        assert not site.braid.presence.is_in
        publisher.connection.receive(wire.connect("p") + publication("tide", 1))
        site.broker.flush()
        assert publisher.take() == []
        sites.run(ENTER_WAIT_S + 0.5)
        site.broker.flush()
        assert [one.type for one in publisher.take()] == [Type.CONNACK, Type.PUBACK]


# Connections that end meanwhile


@pytest.mark.parametrize("how", ["disconnect", "malformed", "taken over", "shut down"])
@QOS
def test_what_is_owed_is_paid_before_a_connection_ends(how: str, qos: int) -> None:
    sites = braid()
    publisher = sites.client(1, "p")
    assert tell(sites, publisher, publication("tide", 1, qos)) == []
    if how == "taken over":
        sites[1].broker.sessions.open("p", "", True, 0)
    elif how == "shut down":
        sites[1].broker.shut_down()
    else:
        tell_last = wire.disconnect() if how == "disconnect" else b"\xff\x00"
        publisher.connection.receive(tell_last)
    sites.run(0.0)
    first, *others = publisher.take()
    assert (first.type, first.reason) == (Type.PUBACK if qos == 1 else Type.PUBREC, 0)
    ends = {"disconnect": [], "malformed": [0x81], "taken over": [0x8E], "shut down": [0x8B]}
    assert [one.reason for one in others] == ends[how]
    sites.run(2)
    assert publisher.take() == []


def test_a_connection_that_is_lost_owes_nothing_and_qos_2_comes_once() -> None:
    sites = braid()
    subscriber = sites.client(3, "s")
    subscriber.subscribe("wind", 2)
    publisher = sites.client(1, "p", **persistent(V5))
    assert tell(sites, publisher, publication("wind", 1, 2, b"once")) == []
    publisher.drop()
    again = sites.client(1, "p", **persistent(V5))
    again.send(wire.publish("wind", b"once", version=V5, qos=2, packet_id=1, dup=True))
    assert again.expect(Type.PUBREC, packet_id=1).reason == 0
    again.send(wire.ack(Type.PUBREL, 1))
    again.expect(Type.PUBCOMP, packet_id=1, reason=0)
    assert payloads(subscriber) == [b"once"]


def test_what_waits_counts_for_the_receive_maximum() -> None:
    sites = braid()
    sites[1].broker.limits = Limits(receive_max=3)
    publisher = sites.client(1, "p")
    assert tell(sites, publisher, publication("a", 1), publication("b", 2)) == []
    assert tell(sites, publisher, publication("c", 3, 2)) == []
    sites.run(1)
    assert acknowledged(publisher) == [(1, NOBODY), (2, NOBODY), (3, NOBODY)]
    tell(sites, publisher, wire.ack(Type.PUBREL, 3))
    last = tell(sites, publisher, *[publication(f"d/{number}", 10 + number) for number in range(4)])
    assert [one.reason for one in last] == [0, 0, 0, Reason.RECEIVE_MAXIMUM_EXCEEDED]


class Frail(JournalStore):
    """A store that cannot be written while it is told so."""

    is_broken = False

    def commit(self) -> None:
        if self.is_broken:
            raise StoreError("the disk is full")
        super().commit()


def test_what_could_not_be_stored_is_not_acknowledged(tmp_path: Path) -> None:
    sites = braid()
    store = Frail(tmp_path)
    site = sites.add(9, store=store)
    sites.run(10)
    publisher = site.client("p")
    store.is_broken = True
    assert tell(sites, publisher, publication("tide", 1)) == []
    sites.run(0.5)
    assert publisher.link.closed
    assert [one.type for one in publisher.take()] == []


def test_order_holds_while_demand_comes_and_goes() -> None:
    sites = Sites(4, method="adaptive", seed=2)
    publisher = sites.client(1, "p")
    subscriber = sites.client(2, "s")
    subscriber.subscribe("t/5/+", 1)
    sent = 0
    got: list[Received] = []
    for _ in range(20):
        packets = []
        for _ in range(10):
            sent += 1
            packets.append(publication(f"t/{sent % 7}/{sent % 13}", sent, 1 + sent % 2))
        got += tell(sites, publisher, *packets)
        sites.run(0.004)
    sites.run(3)
    got += publisher.take()
    assert [one.packet_id for one in got] == list(range(1, sent + 1))
    assert all(one.reason == 0 for one in got if one.packet_id and one.packet_id % 7 == 5)
    assert [one.reason for one in got[:4]] == 4 * [NOBODY]
    assert len(payloads(subscriber)) == sum(number % 7 == 5 for number in range(1, sent + 1))
