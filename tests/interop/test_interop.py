"""The broker with Python clients that others wrote: paho-mqtt, aiomqtt and gmqtt, both versions of the protocol.

The tests share one broker, so each has topics and client ids of its own.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.interop.brokers import AllListeners, running
from tests.raw import TIMEOUT_S, wait_until

V3, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllListeners]:
    with running(tmp_path_factory.mktemp("interop")) as found:
        yield found


def properties(kind: int, **values: Any) -> Properties:
    made = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


# paho-mqtt


class Paho:
    """A paho client whose callbacks end in queues."""

    def __init__(
        self,
        served: AllListeners,
        client_id: str,
        version: MQTTProtocolVersion = V5,
        transport: str = "tcp",
        *,
        kept: bool = False,
        will: dict[str, Any] | None = None,
    ) -> None:
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.subscribed: queue.Queue[list[int]] = queue.Queue()
        self.published: queue.Queue[int] = queue.Queue()
        self._connected: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=not kept if version == V3 else None,
            protocol=version,
            transport={"tls": "tcp", "ws": "websockets", "wss": "websockets"}.get(transport, transport),  # type: ignore[arg-type]
            reconnect_on_failure=False,
        )
        self.client.on_connect = lambda _client, _data, *answer: self._connected.put(answer)
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.on_subscribe = lambda _client, _data, _mid, codes, _more: self.subscribed.put(
            [code.value for code in codes]
        )
        self.client.on_publish = lambda _client, _data, _mid, code, _more: self.published.put(code.value)
        if transport in ("tls", "wss"):
            self.client.tls_set_context(served.tls_context)
        if will is not None:
            self.client.will_set(**will)
        more: dict[str, Any] = {}
        if version == V5:
            more["clean_start"] = not kept
            more["properties"] = properties(
                PacketTypes.CONNECT, SessionExpiryInterval=60 if kept else 0, RequestResponseInformation=1
            )
        where = str(served.unix_path) if transport == "unix" else "localhost"
        self.client.connect(where, 1 if transport == "unix" else served.port_of(transport), **more)
        self.client.loop_start()
        flags, reason, self.connack = self._connected.get(timeout=TIMEOUT_S)
        assert reason == 0
        self.present: bool = flags.session_present

    def __enter__(self) -> Paho:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """The connection breaks without a DISCONNECT."""
        sock = self.client.socket()
        assert sock is not None
        self.client.loop_stop()
        sock.close()

    def subscribe(self, topic_filter: str, qos: int = 2, **options: Any) -> int:
        if self.version == V5:
            self.client.subscribe(topic_filter, options=SubscribeOptions(qos), **options)
        else:
            self.client.subscribe(topic_filter, qos)
        return self.subscribed.get(timeout=TIMEOUT_S)[0]

    def publish(self, topic: str, payload: bytes, qos: int = 0, **more: Any) -> None:
        self.client.publish(topic, payload, qos, **more).wait_for_publish(TIMEOUT_S)

    def next_message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=TIMEOUT_S)


@both_versions
@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss", "unix"])
def test_paho_over_every_transport(served: AllListeners, transport: str, version: MQTTProtocolVersion) -> None:
    name = f"paho-{transport}-{version}"
    with Paho(served, f"{name}-reader", version, transport) as reader, Paho(served, name, version, transport) as writer:
        assert reader.subscribe(f"{name}/#") == 2
        large = bytes(range(256)) * 1500
        for qos in (0, 1, 2):
            for payload in (b"small", b"", large):
                writer.publish(f"{name}/{qos}", payload, qos)
        for qos in (0, 1, 2):
            for payload in (b"small", b"", large):
                message = reader.next_message()
                assert (message.topic, message.qos, message.payload) == (f"{name}/{qos}", qos, payload)
                assert not message.retain
    assert reader.messages.empty()


@both_versions
def test_paho_retained_and_wills(served: AllListeners, version: MQTTProtocolVersion) -> None:
    name = f"paho-kept-{version}"
    will = {"topic": f"{name}/will", "payload": b"gone", "qos": 1, "retain": True}
    with Paho(served, f"{name}-reader", version) as reader:
        doomed = Paho(served, f"{name}-doomed", version, will=will)
        with Paho(served, f"{name}-polite", version, will=will | {"topic": f"{name}/never"}) as polite:
            for qos in (0, 1, 2):
                polite.publish(f"{name}/{qos}", b"%d" % qos, qos, retain=True)
        reader.subscribe(f"{name}/+")
        got = {(one.topic, one.payload, one.qos, one.retain) for one in (reader.next_message() for _ in range(3))}
        assert got == {(f"{name}/{qos}", b"%d" % qos, qos, True) for qos in (0, 1, 2)}
        doomed.vanish()
        message = reader.next_message()
        assert (message.topic, message.payload, message.qos) == (f"{name}/will", b"gone", 1)
        assert not message.retain
        for topic in ("0", "1", "2", "will"):
            reader.publish(f"{name}/{topic}", b"", 1, retain=True)
        for _ in range(4):
            assert reader.next_message().payload == b""
    with Paho(served, f"{name}-late", version) as late:
        late.subscribe(f"{name}/#")
        late.publish(f"{name}/end", b"end")
        assert late.next_message().payload == b"end"  # nothing was retained any more


@both_versions
def test_paho_resumes_a_session(served: AllListeners, version: MQTTProtocolVersion) -> None:
    name = f"paho-session-{version}"
    with Paho(served, name, version, kept=True) as reader:
        assert not reader.present
        reader.subscribe(f"{name}/#")
    with Paho(served, f"{name}-writer", version) as writer:
        for number in range(60):
            writer.publish(f"{name}/{number}", b"%d" % number, 1 + number % 2)
    with Paho(served, name, version, kept=True) as reader:
        assert reader.present
        got = [reader.next_message() for _ in range(60)]
        for qos in (1, 2):  # paho hands QoS 2 over at the end of its exchange, so QoS 1 overtakes it
            assert [int(one.payload) for one in got if one.qos == qos] == list(range(qos - 1, 60, 2))
    with Paho(served, name, version) as reader:
        assert not reader.present


def test_paho_properties(served: AllListeners) -> None:
    name = "paho-properties"
    with Paho(served, f"{name}-reader") as reader, Paho(served, f"{name}-writer") as writer:
        identifier = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=[77])
        assert reader.subscribe(f"{name}/#", properties=identifier) == 2
        sent = {
            "UserProperty": [("b", "1"), ("a", "2")],
            "ResponseTopic": f"{name}-answers",
            "CorrelationData": b"\x00\x01",
            "ContentType": "application/json",
            "PayloadFormatIndicator": 1,
            "MessageExpiryInterval": 300,
            "TopicAlias": 3,
        }
        writer.publish(f"{name}/1", b"{}", 1, properties=properties(PacketTypes.PUBLISH, **sent))
        assert writer.published.get(timeout=TIMEOUT_S) == 0
        got = reader.next_message().properties
        assert got is not None
        for key, value in sent.items():
            if key == "TopicAlias":
                assert not hasattr(got, key)
            else:
                assert getattr(got, key) == value, key
        assert got.SubscriptionIdentifier == [77]  # type: ignore[attr-defined]
        writer.publish("", b"by alias", 2, properties=properties(PacketTypes.PUBLISH, TopicAlias=3))
        assert writer.published.get(timeout=TIMEOUT_S) == 0
        message = reader.next_message()
        assert (message.topic, message.payload) == (f"{name}/1", b"by alias")
        writer.publish(f"{name}-nobody", b"", 1)
        assert writer.published.get(timeout=TIMEOUT_S) == 0x10


def test_paho_request_and_response(served: AllListeners) -> None:
    with Paho(served, "paho-asks") as asks, Paho(served, "paho-answers") as answers:
        inbox = f"{asks.connack.ResponseInformation}/1"
        asks.subscribe(inbox)
        answers.subscribe("paho-question", 1)
        more = properties(PacketTypes.PUBLISH, ResponseTopic=inbox, CorrelationData=b"7")
        asks.publish("paho-question", b"6 x 7", 1, properties=more)
        question = answers.next_message().properties
        assert question is not None
        more = properties(PacketTypes.PUBLISH, CorrelationData=question.CorrelationData)  # type: ignore[attr-defined]
        answers.publish(question.ResponseTopic, b"42", 1, properties=more)  # type: ignore[attr-defined]
        answer = asks.next_message()
        assert answer.payload == b"42"
        assert answer.properties is not None
        assert answer.properties.CorrelationData == b"7"  # type: ignore[attr-defined]


@both_versions
def test_paho_shares_the_work(served: AllListeners, version: MQTTProtocolVersion) -> None:
    name = f"paho-share-{version}"
    members = [Paho(served, f"{name}-{number}", version) for number in range(3)]
    for member in members:
        assert member.subscribe(f"$share/group/{name}/#", 1) == 1
    with Paho(served, f"{name}-writer", version) as writer:
        for number in range(60):
            writer.publish(f"{name}/{number}", b"%d" % number, 1)
    wait_until(lambda: sum(member.messages.qsize() for member in members) >= 60, "all messages have come")
    counts = [member.messages.qsize() for member in members]
    got = [
        int(member.next_message().payload) for member, count in zip(members, counts, strict=True) for _ in range(count)
    ]
    assert sorted(got) == list(range(60))
    assert min(counts) >= 10, f"{counts} is no fair share"
    for member in members:
        member.__exit__()


# aiomqtt


AIO_VERSIONS = {4: aiomqtt.ProtocolVersion.V311, 5: aiomqtt.ProtocolVersion.V5}


async def take(client: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    got: list[aiomqtt.Message] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for message in client.messages:
            got.append(message)
            if len(got) == count:
                break
    return got


@both_versions
async def test_aiomqtt(served: AllListeners, version: MQTTProtocolVersion) -> None:
    name = f"aiomqtt-{version}"
    protocol = AIO_VERSIONS[version]
    will = aiomqtt.Will(f"{name}/will", b"gone", 2)
    async with aiomqtt.Client("localhost", served.port, identifier=f"{name}-reader", protocol=protocol) as reader:
        doomed = aiomqtt.Client("localhost", served.port, identifier=f"{name}-doomed", protocol=protocol, will=will)
        await doomed.__aenter__()
        await doomed.publish(f"{name}/kept", b"kept", 1, retain=True)
        await reader.subscribe(f"{name}/#", 2)
        for qos in (0, 1, 2):
            await doomed.publish(f"{name}/{qos}", b"%d" % qos, qos)
        got = await take(reader, 4)
        assert [(one.topic.value, one.payload, one.qos, one.retain) for one in got] == [
            (f"{name}/kept", b"kept", 1, True),
            *((f"{name}/{qos}", b"%d" % qos, qos, False) for qos in (0, 1, 2)),
        ]
        sock = doomed._client.socket()
        assert sock is not None
        socket.socket(fileno=os.dup(sock.fileno())).shutdown(socket.SHUT_RDWR)
        (message,) = await take(reader, 1)
        assert (message.topic.value, message.payload, message.qos) == (f"{name}/will", b"gone", 2)
        with suppress(aiomqtt.MqttError):
            await doomed.__aexit__(None, None, None)
        await reader.publish(f"{name}/kept", b"", 1, retain=True)


@both_versions
async def test_aiomqtt_resumes_a_session(served: AllListeners, version: MQTTProtocolVersion) -> None:
    name = f"aiomqtt-session-{version}"
    options: dict[str, Any] = {"identifier": name, "protocol": AIO_VERSIONS[version]}
    if version == V3:
        options["clean_session"] = False
    else:
        options["clean_start"] = False
        options["properties"] = properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    async with aiomqtt.Client("localhost", served.port, **options) as reader:
        await reader.subscribe(f"$share/alone/{name}/#", 2)
    async with aiomqtt.Client("localhost", served.port, protocol=AIO_VERSIONS[version]) as writer:
        for number in range(20):
            more = properties(PacketTypes.PUBLISH, UserProperty=("n", str(number))) if version == V5 else None
            await writer.publish(f"{name}/x", b"%d" % number, 2, properties=more)
    async with aiomqtt.Client("localhost", served.port, **options) as reader:
        got = await take(reader, 20)
    assert [one.payload for one in got] == [b"%d" % number for number in range(20)]
    if version == V5:
        found = [getattr(one.properties, "UserProperty", None) for one in got]
        assert found == [[("n", str(number))] for number in range(20)]


# gmqtt


class Gmqtt:
    """A gmqtt client whose messages end in a queue, as (topic, payload, qos, properties)."""

    def __init__(self, client_id: str, **options: Any) -> None:
        self.client = gmqtt.Client(client_id, **options)
        self.messages: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.subscribed: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda _client, _mid, qos, _properties: self.subscribed.put_nowait(qos)
        self.client.set_config({"reconnect_retries": 0})

    def _on_message(self, _client: Any, topic: str, payload: bytes, qos: int, more: dict[str, Any]) -> int:
        self.messages.put_nowait((topic, bytes(payload), qos, more))
        return 0

    async def connect(self, served: AllListeners, version: int) -> None:
        await self.client.connect("localhost", served.port, version=version)

    async def subscribe(self, topic_filter: str, qos: int, **options: Any) -> None:
        self.client.subscribe(topic_filter, qos, **options)
        assert tuple(await asyncio.wait_for(self.subscribed.get(), TIMEOUT_S)) == (qos,)

    async def next_message(self) -> tuple[str, bytes, int, dict[str, Any]]:
        return await asyncio.wait_for(self.messages.get(), TIMEOUT_S)


@pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["3.1.1", "5.0"])
async def test_gmqtt(served: AllListeners, version: int) -> None:
    name = f"gmqtt-{version}"
    reader = Gmqtt(f"{name}-reader")
    await reader.connect(served, version)
    doomed = Gmqtt(f"{name}-doomed", will_message=gmqtt.Message(f"{name}/will", b"gone", qos=1))
    await doomed.connect(served, version)
    doomed.client.publish(f"{name}/kept", b"kept", qos=1, retain=True)
    await reader.subscribe(f"{name}/#", 2)
    for qos in (0, 1, 2):
        doomed.client.publish(f"{name}/{qos}", b"%d" % qos, qos=qos)
    got = [(await reader.next_message())[:3] for _ in range(4)]
    assert sorted(got) == [*((f"{name}/{qos}", b"%d" % qos, qos) for qos in (0, 1, 2)), (f"{name}/kept", b"kept", 1)]
    doomed.client._connection._transport.abort()
    assert (await reader.next_message())[:3] == (f"{name}/will", b"gone", 1)
    reader.client.publish(f"{name}/kept", b"", qos=1, retain=True)
    assert (await reader.next_message())[:2] == (f"{name}/kept", b"")
    await reader.client.disconnect()
    await doomed.client.disconnect()


async def test_gmqtt_properties(served: AllListeners) -> None:
    reader, writer = Gmqtt("gmqtt-properties", topic_alias_maximum=5), Gmqtt("gmqtt-properties-writer")
    await reader.connect(served, MQTTv50)
    await writer.connect(served, MQTTv50)
    await reader.subscribe("gmqtt-properties/#", 1, subscription_identifier=9)
    for _ in range(3):  # the broker names the topic by an alias from the second time on
        writer.client.publish(
            "gmqtt-properties/1",
            b"x",
            qos=1,
            user_property=[("b", "1"), ("a", "2")],
            response_topic="gmqtt-answers",
            correlation_data=b"42",
            content_type="text/plain",
            message_expiry_interval=100,
        )
        topic, payload, qos, more = await reader.next_message()
        assert (topic, payload, qos) == ("gmqtt-properties/1", b"x", 1)
        assert more["user_property"] == [("b", "1"), ("a", "2")]
        assert more["response_topic"] == ["gmqtt-answers"]
        assert more["correlation_data"] == [b"42"]
        assert more["content_type"] == ["text/plain"]
        assert more["message_expiry_interval"][0] in (99, 100)
        assert more["subscription_identifier"] == [9]
    await reader.client.disconnect()
    await writer.client.disconnect()


async def test_gmqtt_resumes_a_session_and_shares(served: AllListeners) -> None:
    options = {"clean_session": False, "session_expiry_interval": 60}
    readers = [Gmqtt(f"gmqtt-session-{number}", **options) for number in range(2)]
    for reader in readers:
        await reader.connect(served, MQTTv50)
        await reader.subscribe("$share/group/gmqtt-session", 2)
        await reader.client.disconnect()
    writer = Gmqtt("gmqtt-session-writer")
    await writer.connect(served, MQTTv50)
    await writer.subscribe("gmqtt-session-end", 1)
    for number in range(20):
        writer.client.publish("gmqtt-session", b"%d" % number, qos=1 + number % 2)
    writer.client.publish("gmqtt-session-end", b"", qos=1)
    await writer.next_message()  # gmqtt does not wait for acknowledgements when it leaves: the broker has all of them
    await writer.client.disconnect()
    readers = [Gmqtt(f"gmqtt-session-{number}", **options) for number in range(2)]
    for reader in readers:
        await reader.connect(served, MQTTv50)
    got: list[int] = []
    waiting = {asyncio.ensure_future(reader.next_message()): reader for reader in readers}
    while len(got) < 20:  # who comes first may have all that it can take
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            got.append(int(one.result()[1]))
            reader = waiting.pop(one)
            waiting[asyncio.ensure_future(reader.next_message())] = reader
    for one in waiting:
        one.cancel()
    assert sorted(got) == list(range(20))  # each is with one of the two
    for reader in readers:
        await reader.client.disconnect()
