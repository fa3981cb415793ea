"""Reason codes (§2.4): no packet carries one that is not in its table, whatever a failure is called where it is found.

The peer's decoder refuses any other, so these tests only have to bring each reason to where it is told.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import encode
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.packets import V5
from braidmq.mqtt.reason_tables import REASONS
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Challenge, Credentials, Exchange, Identity, Refusal

from . import wire
from .pair import V3, Type, World
from .wire import REASONS_FROM_SERVER, props

every_reason = pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.name)


class Refuses:
    """An authenticator that refuses everybody for one reason."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason

    def authenticate(self, credentials: Credentials) -> Refusal:
        return Refusal(self.reason)


class Once:
    """An authentication method that lets a client in, and refuses it when it comes again."""

    name = "once"

    def __init__(self, reason: Reason) -> None:
        self.answers: list[Identity | Refusal] = [Identity("u"), Refusal(reason)]

    def begin(self, credentials: Credentials) -> Exchange:
        return self

    def step(self, data: bytes | None) -> Challenge | Identity | Refusal:
        return self.answers.pop(0)

    @property
    def final_data(self) -> bytes | None:
        return None


@pytest.mark.statement("5.0:MQTT-3.2.2-8", "5.0:MQTT-3.2.2-7")
@every_reason
def test_a_refused_connect(reason: Reason) -> None:
    peer = World(authenticator=Refuses(reason)).peer()
    peer.send(wire.connect("c"))
    told = peer.expect(Type.CONNACK)
    if reason.failed and reason in REASONS_FROM_SERVER[Type.CONNACK]:
        assert told.reason == reason
    assert told.reason >= 0x80
    assert peer.link.closed


@pytest.mark.statement("3.1.1:MQTT-3.2.2-5")
@every_reason
def test_a_refused_connect_of_3_1_1(reason: Reason) -> None:
    """It has few words for a refusal, and where none fits it just closes."""
    peer = World(authenticator=Refuses(reason)).peer(V3)
    peer.send(wire.connect("c", version=V3))
    assert all(answer.type is Type.CONNACK and answer.reason > 0 for answer in peer.take())
    assert peer.link.closed


@pytest.mark.statement("5.0:MQTT-3.14.2-1", "5.0:MQTT-4.12.1-2")
@every_reason
def test_a_refused_re_authentication(reason: Reason) -> None:
    peer = World(methods={"once": Once(reason)}).peer()
    peer.connect("c", properties=props(auth_method="once"))
    peer.send(wire.auth(0x19, props(auth_method="once")))
    peer.expect_closed(*(code for code in REASONS_FROM_SERVER[Type.DISCONNECT] if code >= 0x80))


@pytest.mark.statement("5.0:MQTT-3.14.2-1")
@every_reason
def test_any_failure_on_an_open_connection(world: World, reason: Reason) -> None:
    peer = world.client("c")
    peer.connection.fail(PacketError(reason, "this went wrong"))
    world.settle()
    told = peer.expect(Type.DISCONNECT)
    if reason.failed and reason in REASONS_FROM_SERVER[Type.DISCONNECT]:
        assert told.reason == reason
    assert told.reason >= 0x80
    assert peer.link.closed


@pytest.mark.parametrize("kind", [Type.CONNACK, Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP, Type.SUBACK])
def test_another_reason_is_not_encoded(kind: Type) -> None:
    makers: dict[Type, Callable[[Reason], p.Packet]] = {
        Type.CONNACK: lambda reason: p.Connack(False, reason),
        Type.PUBACK: lambda reason: p.Puback(1, reason),
        Type.PUBREC: lambda reason: p.Pubrec(1, reason),
        Type.PUBREL: lambda reason: p.Pubrel(1, reason),
        Type.PUBCOMP: lambda reason: p.Pubcomp(1, reason),
        Type.SUBACK: lambda reason: p.Suback(1, [Reason.SUCCESS, reason]),
    }
    made = makers[kind]
    for reason in Reason:
        if reason in REASONS_FROM_SERVER[kind]:
            assert wire.decode(encode(made(reason), V5), V5).type is kind
        else:
            with pytest.raises(ValueError, match="does not belong"):
                encode(made(reason), V5)


def test_the_tables_agree_with_those_of_the_suite() -> None:
    """The suite has its own, typed from the specification a second time; a client may say a few more."""
    from_clients = {Type.DISCONNECT: {0x04, 0x8C}, Type.AUTH: {0x19}}
    assert {Type(kind) for kind in REASONS} == set(REASONS_FROM_SERVER)
    for kind, codes in REASONS_FROM_SERVER.items():
        assert REASONS[kind] == codes | from_clients.get(kind, set()), kind.name
