"""CONNECT and CONNACK (§3.1, §3.2): who is let in, under which name, and with what answer."""

from __future__ import annotations

import string
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Literal

import pytest

from braidmq.broker.limits import Limits
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Refusal, Verdict

from . import wire
from .pair import V3, V5, Type, Will, World
from .wire import props

LETTERS = string.digits + string.ascii_letters


class Doorkeeper:
    """Lets in all but the client ids that begin with "no"."""

    def __init__(self, reason: Reason = Reason.NOT_AUTHORIZED) -> None:
        self.reason = reason

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Refusal(self.reason) if credentials.client_id.startswith("no") else Identity()


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.3-5",
    "3.1.1:MQTT-3.1.4-4",
    "3.1.1:MQTT-3.2.0-1",
    "5.0:MQTT-3.1.3-5",
    "5.0:MQTT-3.1.4-5",
    "5.0:MQTT-3.2.0-1",
    "5.0:MQTT-3.2.2-1",
)
@pytest.mark.parametrize("client_id", ["a", "Z9", LETTERS[:23], LETTERS[23:46], LETTERS[-23:], "n" * 23])
def test_good_connect_gets_connack_0(world: World, version: int, client_id: str) -> None:
    peer = world.client(client_id, version)
    assert peer.connack is not None
    assert not peer.connack.session_present
    peer.expect_open()


@pytest.mark.statement("3.1.1:MQTT-3.1.0-1", "5.0:MQTT-3.1.0-1", "5.0:MQTT-3.14.0-1", "5.0:MQTT-3.2.0-1")
@pytest.mark.parametrize(
    "first",
    [
        wire.PINGREQ,
        wire.publish("a", b"x", version=V3),
        wire.subscribe(1, ("a", 0)),
        wire.disconnect(),
        wire.auth(0x18, props(auth_method="m")),
        wire.ack(Type.PUBACK, 1),
        b"\x20\x02\x00\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["PINGREQ", "PUBLISH", "SUBSCRIBE", "DISCONNECT", "AUTH", "PUBACK", "CONNACK", "type-0", "type-15", "HTTP"],
)
def test_first_packet_is_connect(world: World, first: bytes) -> None:
    peer = world.peer()
    peer.send(first)
    peer.expect_closed()


@pytest.mark.statement("3.1.1:MQTT-3.1.0-2", "3.1.1:MQTT-4.8.0-1", "5.0:MQTT-3.1.0-2", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("again", [V3, V5])
def test_second_connect_closes(world: World, version: int, again: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.connect("c", version=again))
    peer.expect_closed(0x82)


@pytest.mark.statement("3.1.1:MQTT-3.1.0-2", "5.0:MQTT-3.1.0-2", "5.0:MQTT-3.14.2-1")
@pytest.mark.parametrize(
    "again",
    [
        wire.connect("c", level=6),
        wire.connect("c", level=3, name="MQIsdp"),
        wire.connect("c", name="HTTP"),
        wire.connect("c", flags=0x03),
        wire.connect("", version=V3, clean=False),
        wire.connect("c", properties=props(session_expiry=[1, 1])),
        wire.packet(Type.CONNECT, b""),
        wire.packet(Type.CONNECT, b"", flags=1),
    ],
    ids=["level 6", "3.1", "other name", "reserved flag", "no client id", "twice", "empty", "header flags"],
)
def test_second_connect_closes_whatever_it_holds(world: World, version: int, again: bytes) -> None:
    peer = world.client("c", version)
    peer.send(again)
    peer.expect_closed(0x82)


@pytest.mark.statement("3.1.1:MQTT-3.1.2-1", "5.0:MQTT-3.1.2-1", "5.0:MQTT-3.14.0-1")
@pytest.mark.parametrize("name", ["MQTS", "mqtt", "MQT", "MQTTT", "", "MQIsdp", b"MQ\xff\xff"])
def test_wrong_protocol_name_is_not_served(world: World, version: int, name: str | bytes) -> None:
    peer = world.peer(version)
    peer.send(wire.connect("c", version=version, name=name))
    assert peer.link.closed
    answer = peer.link.stream
    assert answer == b"" or (answer[0] == 0x20 and answer[2] == 0 and answer[3] in (0x01, 0x81, 0x84))


@pytest.mark.statement("3.1.1:MQTT-3.1.2-2", "5.0:MQTT-3.1.2-2", "5.0:MQTT-3.2.2-7", "3.1.1:MQTT-3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 7, 0x84, 255])
def test_unknown_protocol_level_is_told(world: World, level: int) -> None:
    peer = world.peer(V3 if level < V5 else V5)
    peer.send(wire.connect("c", version=peer.version, level=level))
    assert peer.link.closed
    if peer.link.stream != bytes.fromhex("20 02 00 01"):
        assert level > V5
        peer.expect_refused(0x84)


def _cut_connects(version: int) -> list[bytes]:
    """A full CONNECT, cut after each byte of its body, with a length that fits."""
    whole = wire.connect("cut", version=version, will=Will(), username="u", password=b"p")
    return [wire.packet(Type.CONNECT, whole[2 : 2 + size]) for size in range(7, len(whole) - 2)]


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-19",
    "3.1.1:MQTT-3.1.2-21",
    "3.1.1:MQTT-3.1.2-9",
    "3.1.1:MQTT-3.1.3-3",
    "3.1.1:MQTT-3.1.4-1",
    "5.0:MQTT-3.1.2-17",
    "5.0:MQTT-3.1.2-19",
    "5.0:MQTT-3.1.2-9",
    "5.0:MQTT-3.1.3-3",
    "5.0:MQTT-3.1.4-1",
    "5.0:MQTT-3.2.2-8",
)
def test_connect_cut_short_is_refused(version: int) -> None:
    for raw in _cut_connects(version):
        world = World()
        peer = world.peer(version)
        peer.send(raw)
        peer.expect_refused(0x81)


def _bad_flags(version: int) -> dict[str, bytes]:
    make = wire.connect
    return {
        "reserved flag": make(version=version, flags=0x03),
        "will QoS 3": make(version=version, will=Will(), flags=0x02 | 0x04 | 0x18),
        "will QoS 1 without will": make(version=version, flags=0x02 | 0x08),
        "will QoS 2 without will": make(version=version, flags=0x02 | 0x10),
        "will retain without will": make(version=version, flags=0x02 | 0x20),
        "will without will flag": make(version=version, will=Will(), flags=0x02),
        "user name without flag": make(version=version, username="u", flags=0x02),
        "flag without user name": make(version=version, flags=0x82),
        "password without flag": make(version=version, username="u", password=b"p", flags=0x82),
        "flag without password": make(version=version, username="u", flags=0xC2),
        "trailing byte": wire.packet(Type.CONNECT, make(version=version)[2:] + b"\0"),
        "nothing": wire.packet(Type.CONNECT, b""),
    }


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-3",
    "3.1.1:MQTT-3.1.2-11",
    "3.1.1:MQTT-3.1.2-13",
    "3.1.1:MQTT-3.1.2-14",
    "3.1.1:MQTT-3.1.2-15",
    "3.1.1:MQTT-3.1.2-18",
    "3.1.1:MQTT-3.1.2-19",
    "3.1.1:MQTT-3.1.2-20",
    "3.1.1:MQTT-3.1.2-21",
    "3.1.1:MQTT-3.1.3-1",
    "3.1.1:MQTT-3.1.4-1",
    "5.0:MQTT-3.1.2-3",
    "5.0:MQTT-3.1.2-11",
    "5.0:MQTT-3.1.2-12",
    "5.0:MQTT-3.1.2-13",
    "5.0:MQTT-3.1.2-16",
    "5.0:MQTT-3.1.2-17",
    "5.0:MQTT-3.1.2-18",
    "5.0:MQTT-3.1.2-19",
    "5.0:MQTT-3.1.3-1",
    "5.0:MQTT-3.1.4-1",
)
@pytest.mark.parametrize("what", _bad_flags(V5))
def test_connect_flags_and_payload_must_agree(world: World, version: int, what: str) -> None:
    peer = world.peer(version)
    peer.send(_bad_flags(version)[what])
    if what == "nothing":  # no version known yet
        assert peer.link.closed
    else:
        peer.expect_refused(0x81, 0x82)


@pytest.mark.statement("3.1.1:MQTT-2.2.2-2", "5.0:MQTT-2.1.3-1", "5.0:MQTT-3.1.4-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_connect_header_flags_are_reserved(world: World, version: int, flags: int) -> None:
    peer = world.peer(version)
    raw = wire.connect("c", version=version)
    peer.send(bytes((raw[0] | flags,)) + raw[1:])
    assert peer.link.closed
    assert peer.link.stream[:1] in (b"", b"\x20")


@pytest.mark.statement("3.1.1:MQTT-3.1.2-22", "3.1.1:MQTT-3.1.4-1")
def test_password_without_user_name(world: World, version: int) -> None:
    peer = world.peer(version)
    if version == V5:  # allowed since 5.0
        peer.connect("c", password=b"token")
        peer.expect_open()
    else:
        peer.send(wire.connect("c", version=version, password=b"token"))
        peer.expect_closed()


@pytest.mark.statement("3.1.1:MQTT-3.1.3-1", "5.0:MQTT-3.1.3-1")
def test_payload_fields_come_in_their_order(version: int) -> None:
    seen = []

    class Listener:
        def authenticate(self, credentials: Credentials) -> Verdict:
            seen.append((credentials.client_id, credentials.username, credentials.password))
            return Identity()

    world = World(authenticator=Listener())
    watcher = world.client("watcher", version)
    watcher.subscribe("t/w")
    peer = world.client("who", version, will=Will("t/w", b"m"), username="user", password=b"\x00\xff")
    peer.drop()
    assert seen[-1] == ("who", "user", b"\x00\xff")
    watcher.expect_publish("t/w", b"m")


@pytest.mark.statement("3.1.1:MQTT-3.1.3-6", "3.1.1:MQTT-3.1.3-7")
def test_empty_client_id_of_3_1_1_gets_one_of_its_own(world: World) -> None:
    first = world.client("", V3)
    second = world.client("", V3)
    first.expect_open()
    second.expect_open()


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.3-7",
    "3.1.1:MQTT-3.1.3-8",
    "3.1.1:MQTT-3.1.3-9",
    "3.1.1:MQTT-3.2.2-4",
    "3.1.1:MQTT-3.2.2-5",
)
def test_empty_client_id_of_3_1_1_needs_a_clean_session(world: World) -> None:
    peer = world.peer(V3)
    peer.send(wire.connect("", version=V3, clean=False))
    peer.expect(Type.CONNACK, reason=2, session_present=False)
    peer.expect_closed()


@pytest.mark.statement("5.0:MQTT-3.1.3-6", "5.0:MQTT-3.1.3-7", "5.0:MQTT-3.2.2-16")
@pytest.mark.parametrize("clean", [True, False])
def test_empty_client_id_of_5_0_is_assigned_and_told(world: World, clean: bool) -> None:
    names = set()
    for _ in range(3):
        peer = world.peer()
        connack = peer.connect("", clean=clean, properties=props(session_expiry=60))
        assert not connack.session_present
        names.add(connack.properties["assigned_client_id"])
        peer.drop()
    assert len(names) == 3
    assert world.client(names.pop(), clean=False).connack.session_present  # type: ignore[union-attr]


@pytest.mark.statement("5.0:MQTT-3.1.3-7")
def test_a_client_id_of_its_own_is_not_assigned(world: World) -> None:
    assert "assigned_client_id" not in world.peer().connect("mine").properties


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.4-2", "3.1.1:MQTT-3.1.3-2", "5.0:MQTT-3.1.3-2", "5.0:MQTT-3.1.4-3", "5.0:MQTT-4.13.2-1"
)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("newer", [V3, V5])
def test_take_over_disconnects_the_older(world: World, version: int, newer: int, clean: bool) -> None:
    older = world.client("same", version)
    younger = world.client("same", newer, clean=clean)
    older.expect_closed(0x8E)
    younger.expect_open()
    third = world.client("other", version)
    third.expect_open()


@pytest.mark.statement("5.0:MQTT-3.1.4-2", "5.0:MQTT-3.2.2-7", "5.0:MQTT-3.2.2-6", "3.1.1:MQTT-3.2.2-5")
@pytest.mark.parametrize(
    ("reason", "code"), [(Reason.NOT_AUTHORIZED, 5), (Reason.BAD_USER_NAME_OR_PASSWORD, 4), (Reason.BANNED, 5)]
)
def test_refused_by_the_authenticator(version: int, reason: Reason, code: int) -> None:
    world = World(authenticator=Doorkeeper(reason))
    peer = world.peer(version)
    peer.connect("no", reason=code if version == V3 else reason)
    assert peer.link.closed
    peer.expect_nothing()
    world.client("yes", version).expect_open()


@pytest.mark.statement("5.0:MQTT-3.1.3-8", "3.1.1:MQTT-3.1.3-9")
def test_refused_client_id(version: int) -> None:
    world = World(authenticator=Doorkeeper(Reason.CLIENT_IDENTIFIER_NOT_VALID))
    peer = world.peer(version)
    peer.connect("no", reason=2 if version == V3 else 0x85)
    assert peer.link.closed


@pytest.mark.statement("3.1.1:MQTT-3.1.4-5", "5.0:MQTT-3.1.4-6", "3.1.1:MQTT-3.2.2-4", "5.0:MQTT-3.2.2-6")
def test_nothing_after_a_refused_connect_is_processed(version: int) -> None:
    world = World(authenticator=Doorkeeper())
    watcher = world.client("watcher", version)
    watcher.subscribe("#")
    peer = world.peer(version)
    peer.send(wire.connect("no", version=version), wire.publish("a", b"x", version=version), wire.PINGREQ)
    peer.expect(Type.CONNACK, reason=5 if version == V3 else 0x87, session_present=False)
    peer.expect_closed()
    watcher.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.4-4", "5.0:MQTT-3.1.4-5", "5.0:MQTT-3.2.0-1", "5.0:MQTT-3.2.0-2")
def test_a_client_need_not_wait_for_connack(world: World, version: int) -> None:
    peer = world.peer(version)
    peer.send(
        wire.connect("c", version=version),
        wire.subscribe(1, ("a", 0), version=version),
        wire.publish("a", b"x", version=version),
        wire.PINGREQ,
    )
    peer.expect(Type.CONNACK)
    got = peer.take()
    assert sorted(one.type for one in got) == [Type.PUBLISH, Type.SUBACK, Type.PINGRESP]


@pytest.mark.statement("5.0:MQTT-3.2.2-9", "5.0:MQTT-3.2.2-10", "5.0:MQTT-3.2.2-11", "5.0:MQTT-3.2.2-12")
@pytest.mark.parametrize("qos_max", [0, 1])
def test_a_server_with_less_qos_says_so(qos_max: Literal[0, 1]) -> None:
    world = World(limits=Limits(qos_max=qos_max))
    peer = world.client("c")
    assert peer.connack is not None
    assert peer.connack.properties["maximum_qos"] == qos_max
    for qos in (0, 1, 2):
        assert peer.subscribe(f"t/{qos}", qos) == min(qos, qos_max)
    peer.send(wire.publish("t/0", qos=qos_max + 1, packet_id=1))
    peer.expect_closed(0x9B)
    other = world.peer()
    other.send(wire.connect("w", will=Will(qos=qos_max + 1)))
    other.expect_refused(0x9B)


@pytest.mark.statement("5.0:MQTT-3.2.2-13", "5.0:MQTT-3.2.2-14")
def test_a_server_without_retain_says_so() -> None:
    world = World(limits=Limits(retain=False))
    peer = world.client("c")
    assert peer.connack is not None
    assert peer.connack.properties["retain_available"] == 0
    peer.send(wire.publish("a", b"x", retain=True))
    peer.expect_closed(0x9A)
    other = world.peer()
    other.send(wire.connect("w", will=Will(retain=True)))
    other.expect_refused(0x9A)


@pytest.mark.statement("3.1.1:MQTT-3.2.2-6")
@pytest.mark.parametrize("will", [Will(retain=True), Will(qos=2)], ids=["retained", "QoS 2"])
def test_no_connack_where_no_return_code_fits(will: Will) -> None:
    world = World(limits=Limits(retain=False, qos_max=1))
    peer = world.peer(V3)
    peer.send(wire.connect("w", version=V3, will=will))
    peer.expect_closed()


def test_connack_tells_the_limits() -> None:
    limits = Limits(
        receive_max=7,
        topic_alias_max=5,
        packet_bytes_max=2048,
        session_expiry_max_s=100,
        wildcards=False,
        subscription_ids=False,
        shared_subscriptions=False,
    )
    found = World(limits=limits).peer().connect("c", properties=props(session_expiry=1000)).properties
    assert found["receive_maximum"] == 7
    assert found["topic_alias_maximum"] == 5
    assert found["maximum_packet_size"] == 2048
    assert found["session_expiry"] == 100
    assert found["wildcard_available"] == 0
    assert found["subscription_ids_available"] == 0
    assert found["shared_available"] == 0


def test_connack_does_not_deny_what_is_there(world: World) -> None:
    found = world.peer().connect("c").properties
    for name in ("retain_available", "wildcard_available", "subscription_ids_available", "shared_available"):
        assert found.get(name, 1) == 1
    assert "maximum_qos" not in found  # 2 is said by silence: the property may only be 0 or 1


@pytest.mark.statement("5.0:MQTT-3.1.2-28")
def test_response_information_only_on_request(world: World) -> None:
    assert "response_information" not in world.peer().connect("a").properties
    assert "response_information" not in world.peer().connect("b", properties=props(request_response=0)).properties
    assert world.peer().connect("c", properties=props(request_response=1)).properties["response_information"]


@pytest.mark.statement("5.0:MQTT-3.2.2-19", "5.0:MQTT-3.1.2-24")
@pytest.mark.parametrize("size_max", [20, 30, 60])
def test_a_refusal_fits_the_clients_packet_size(size_max: int) -> None:
    world = World(authenticator=Doorkeeper())
    peer = world.peer()
    peer.note_limits(properties := props(maximum_packet_size=size_max))
    peer.send(wire.connect("no", properties=properties))
    peer.expect_refused(0x87)


@pytest.mark.statement("5.0:MQTT-3.1.2-24")
@pytest.mark.parametrize("size_max", [1, 2, 4, 5, 6, 10, 20, 30, 40, 45, 50, 60])
def test_a_connack_fits_or_does_not_come(world: World, size_max: int) -> None:
    """The peer itself refuses what is too large; a client that takes next to nothing cannot be served."""
    peer = world.peer()
    peer.note_limits(properties := props(maximum_packet_size=size_max))
    peer.send(wire.connect("", properties=properties))
    answers = peer.take()
    assert [one.type for one in answers] in ([], [Type.CONNACK])
    assert peer.link.closed or answers[0].properties["assigned_client_id"]


@pytest.mark.parametrize("start", [b"", wire.connect("c")[:5], wire.connect("c")[:-1]])
def test_a_connect_must_come_in_time(world: World, start: bytes) -> None:
    peer = world.peer()
    peer.send(start)
    world.advance(Limits().connect_timeout_s - 1)
    assert not peer.link.closed
    world.advance(3)
    peer.expect_closed()


def test_a_large_connect_costs_its_sender() -> None:
    world = World(limits=Limits(connect_packet_bytes_max=200))
    peer = world.peer()
    peer.send(wire.connect("c", password=bytes(300))[:10])  # the header is enough to know
    assert peer.link.closed
    world.client("c", password=bytes(100)).expect_open()


class Later:
    """An authenticator that takes its time: the test says when, and what."""

    def __init__(self) -> None:
        self.verdict: Verdict = Identity()

    async def authenticate(self, _credentials: Credentials) -> Verdict:
        await _Pause()
        return self.verdict


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _waiting_world() -> tuple[World, Later, Callable[[], None]]:
    """A world whose authenticator waits; the last of the three lets every authentication go on to its end."""
    coroutines: list[Coroutine[Any, Any, None]] = []

    def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.send(None)
        coroutines.append(coroutine)

    later = Later()
    world = World(authenticator=later, spawn=spawn)

    def go_on() -> None:
        for coroutine in coroutines:
            with suppress(StopIteration):
                coroutine.send(None)
        coroutines.clear()
        world.settle()

    return world, later, go_on


@pytest.mark.statement("5.0:MQTT-3.2.0-1", "3.1.1:MQTT-3.2.0-1", "5.0:MQTT-3.1.4-6", "3.1.1:MQTT-3.1.4-5")
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("pieces", [1, 3])
def test_what_comes_during_authentication_waits_for_it(version: int, allowed: bool, pieces: int) -> None:
    world, later, go_on = _waiting_world()
    watcher = world.peer(version)
    watcher.send(wire.connect("w", version=version), wire.subscribe(1, ("t", 0), version=version))
    go_on()
    assert [one.type for one in watcher.take()] == [Type.CONNACK, Type.SUBACK]
    later.verdict = Identity("u") if allowed else Refusal(Reason.NOT_AUTHORIZED)
    peer = world.peer(version)
    packets = [wire.connect("c", version=version), wire.publish("t", b"x", version=version), wire.PINGREQ]
    for piece in packets if pieces == 3 else [b"".join(packets)]:
        peer.send(piece)
    peer.expect_nothing()
    watcher.expect_nothing()
    go_on()
    if allowed:
        peer.expect(Type.CONNACK, reason=0)
        peer.expect(Type.PINGRESP)
        watcher.expect_publish("t", b"x")
    else:
        peer.expect(Type.CONNACK, reason=5 if version == V3 else 0x87)
        peer.expect_closed()
        watcher.expect_nothing()


def test_a_client_that_leaves_during_authentication(version: int) -> None:
    world, _, go_on = _waiting_world()
    gone = world.peer(version)
    gone.send(wire.connect("c", version=version, will=Will("t")))
    gone.drop()
    slow = world.peer(version)
    slow.send(wire.connect("d", version=version))
    world.advance(12)  # more than a CONNECT may take
    assert slow.link.closed
    go_on()
    gone.expect_nothing()
    assert [one.reason > 0 for one in slow.take()] in ([], [True])


def test_credentials_that_run_out(version: int) -> None:
    class Brief:
        def authenticate(self, _credentials: Credentials) -> Verdict:
            return Identity("u", expires_at=world.broker.now() + 60)

    world = World(authenticator=Brief())
    peer = world.client("c", version)
    world.advance(59)
    peer.expect_open()
    world.advance(2)
    peer.expect_closed(0x87)
