"""Enhanced authentication (§3.15, §4.12): AUTH before the CONNACK, and again on the open connection."""

from __future__ import annotations

import pytest

from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Challenge, Credentials, Exchange, Identity, Refusal

from . import wire
from .pair import V3, Peer, Type, World
from .wire import props


class Riddle:
    """Asks "1+1" and "2+2" one after the other; the data that comes along decides how far it goes at once."""

    name = "riddle"

    def begin(self, credentials: Credentials) -> Exchange:
        return Asked(credentials.client_id)


class Asked:
    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.wanted = [(b"1+1", b"2"), (b"2+2", b"4")]
        self.asked: bytes | None = None

    def step(self, data: bytes | None) -> Challenge | Identity | Refusal:
        if data == b"password":
            return Identity(self.client_id)
        if self.asked is not None and data != self.asked:
            return Refusal(Reason.NOT_AUTHORIZED)
        if not self.wanted:
            return Identity(self.client_id)
        question, self.asked = self.wanted.pop(0)
        return Challenge(question)

    @property
    def final_data(self) -> bytes | None:
        return b"well done"


METHOD = props(auth_method="riddle")


@pytest.fixture
def riddles() -> World:
    return World(methods={"riddle": Riddle()})


def _answer(data: bytes, reason: int = 0x18, method: str = "riddle") -> bytes:
    return wire.auth(reason, props(auth_method=method, auth_data=data))


def _question(peer: Peer, data: bytes) -> None:
    peer.expect(Type.AUTH, reason=0x18, properties={"auth_method": "riddle", "auth_data": data})


def _welcomed(world: World) -> Peer:
    peer = world.peer()
    peer.connect("c", properties=METHOD + props(auth_data=b"password"))
    return peer


@pytest.mark.statement(
    "5.0:MQTT-4.12.0-2", "5.0:MQTT-4.12.0-3", "5.0:MQTT-4.12.0-5", "5.0:MQTT-3.2.0-1", "5.0:MQTT-3.15.2-1"
)
def test_a_whole_exchange(riddles: World) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    peer.send(_answer(b"2"))
    _question(peer, b"2+2")
    peer.send(_answer(b"4"))
    connack = peer.expect(Type.CONNACK, reason=0)
    assert connack.properties["auth_method"] == "riddle"
    assert connack.properties["auth_data"] == b"well done"
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.12.0-5")
def test_an_exchange_without_auth_packets(riddles: World) -> None:
    peer = _welcomed(riddles)
    assert peer.connack is not None
    assert peer.connack.properties["auth_method"] == "riddle"
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.12.0-1")
@pytest.mark.parametrize("method", ["unknown", "Riddle", "", "riddle "])
def test_an_unknown_method(riddles: World, method: str) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=props(auth_method=method)))
    peer.expect_refused(0x8C)


@pytest.mark.statement("5.0:MQTT-4.12.0-1")
def test_a_broker_without_methods(world: World) -> None:
    peer = world.peer()
    peer.send(wire.connect("c", properties=METHOD + props(auth_data=b"x")))
    peer.expect_refused(0x8C)


@pytest.mark.statement("5.0:MQTT-4.12.0-4", "5.0:MQTT-3.14.0-1")
@pytest.mark.parametrize("step", [0, 1])
def test_a_wrong_answer(riddles: World, step: int) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    if step:
        peer.send(_answer(b"2"))
        _question(peer, b"2+2")
    peer.send(_answer(b"wrong"))
    peer.expect_refused(0x87)


@pytest.mark.statement("5.0:MQTT-4.12.0-5", "5.0:MQTT-3.14.0-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "raw",
    [
        _answer(b"2", method="other"),
        wire.auth(0x18, b""),
        wire.auth(0x18, props(auth_data=b"2")),
        _answer(b"2", reason=0x19),
        _answer(b"2", reason=0x00),
        wire.packet(Type.AUTH, b""),
    ],
    ids=["other method", "no properties", "no method", "re-authenticate", "success", "empty"],
)
def test_auth_packets_that_break_the_exchange(riddles: World, raw: bytes) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    peer.send(raw)
    peer.expect_refused(0x82)


@pytest.mark.statement("5.0:MQTT-3.15.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x17, 0x1A, 0x80, 0xFF])
def test_reason_codes_outside_the_table(riddles: World, reason: int) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    peer.send(_answer(b"2", reason=reason))
    peer.expect_refused(0x81, 0x82)


@pytest.mark.statement("5.0:MQTT-3.1.2-30", "5.0:MQTT-3.2.0-1")
@pytest.mark.parametrize(
    "raw",
    [
        wire.PINGREQ,
        wire.publish("t", b"x"),
        wire.publish("t", b"x", qos=1, packet_id=1),
        wire.subscribe(1, ("t", 0)),
        wire.unsubscribe(1, "t"),
        wire.ack(Type.PUBACK, 1),
        wire.ack(Type.PUBREL, 1),
        wire.connect("c"),
    ],
    ids=["PINGREQ", "PUBLISH 0", "PUBLISH 1", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "PUBREL", "CONNECT"],
)
def test_other_packets_during_the_exchange(riddles: World, raw: bytes) -> None:
    watcher = riddles.client("w")
    watcher.subscribe("#")
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    peer.send(raw, _answer(b"2"))
    peer.expect_refused(0x82)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.2-30")
def test_a_client_may_give_up_the_exchange(riddles: World) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    peer.send(wire.disconnect())
    peer.expect_closed()


def test_an_exchange_has_its_time(riddles: World) -> None:
    peer = riddles.peer()
    peer.send(wire.connect("c", properties=METHOD))
    _question(peer, b"1+1")
    riddles.advance(12)
    assert peer.link.closed
    assert [one.type for one in peer.take()] in ([], [Type.CONNACK])


@pytest.mark.statement("5.0:MQTT-4.12.0-6")
def test_no_method_no_auth(riddles: World) -> None:
    peer = riddles.peer()
    assert "auth_method" not in peer.connect("c").properties
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.12.0-7", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_auth_without_a_method_in_connect(riddles: World, reason: int) -> None:
    peer = riddles.client("c")
    peer.send(_answer(b"2", reason=reason))
    peer.expect_closed(0x82)


def test_auth_is_unknown_to_3_1_1(riddles: World) -> None:
    peer = riddles.client("c", V3)
    peer.send(_answer(b"2"))
    peer.expect_closed()


# On the open connection


@pytest.mark.statement("5.0:MQTT-4.12.1-1", "5.0:MQTT-4.12.0-5", "5.0:MQTT-3.15.2-1")
def test_re_authentication(riddles: World) -> None:
    peer = _welcomed(riddles)
    for _ in range(2):
        peer.send(wire.auth(0x19, METHOD))
        _question(peer, b"1+1")
        peer.send(_answer(b"2"))
        _question(peer, b"2+2")
        assert peer.publish("t", b"the old authentication still holds", 1) == 0x10
        peer.send(_answer(b"4"))
        done = peer.expect(Type.AUTH, reason=0)
        assert done.properties["auth_method"] == "riddle"
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.12.1-2")
def test_re_authentication_that_fails(riddles: World) -> None:
    peer = _welcomed(riddles)
    peer.send(wire.auth(0x19, METHOD))
    _question(peer, b"1+1")
    peer.send(_answer(b"wrong"))
    peer.expect_closed(0x87)


@pytest.mark.statement("5.0:MQTT-4.12.1-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "raw",
    [
        _answer(b"password", reason=0x19, method="other"),
        wire.auth(0x19, b""),
        _answer(b"password", reason=0x00),
        _answer(b"2", reason=0x18),
        wire.packet(Type.AUTH, b""),
    ],
    ids=["other method", "no method", "success", "continue nothing", "empty"],
)
def test_re_authentication_that_breaks_the_rules(riddles: World, raw: bytes) -> None:
    peer = _welcomed(riddles)
    peer.send(raw)
    peer.expect_closed(0x82)
