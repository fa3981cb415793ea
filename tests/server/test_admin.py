"""The admin port: metrics that Prometheus can read, health, readiness, and the token that it asks for."""

from __future__ import annotations

import json
import socket
import time
from functools import partial
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from braidmq.broker.broker import Broker as Core
from braidmq.broker.metrics import Metrics
from braidmq.broker.notices import LINES_EACH_MAX
from braidmq.config.settings import AdminConfig, Config, Listener
from braidmq.server.admin import port as module
from braidmq.server.admin.port import AdminServer
from braidmq.server.listening import ListenError, Listeners
from braidmq.server.metrics.exposition import METRICS, Exposition, readings
from tests.patience import PATIENCE_S
from tests.raw import wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

CONNACK = b"\x20\x02\x00\x00"
ADMIN = "[admin]\nport = 0\n"


def get(broker: Broker, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    request = Request(broker.address("http") + path, headers=headers)
    try:
        with urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except HTTPError as refused:
        return refused.code, refused.headers["Content-Type"], refused.read().decode()


def samples(broker: Broker) -> dict[str, float]:
    status, _, text = get(broker, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_count_what_happens(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    before = samples(broker)
    assert before["braidmq_connections"] == 0
    with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as client:
        client.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01m")
        assert client.recv(4) == CONNACK
        client.sendall(b"\x82\x06\x00\x01\x00\x01t\x00" + b"\x31\x04\x00\x01tx" + b"\x30\x04\x00\x01ty")
        received = b""
        while len(received) < 17:
            received += client.recv(100)
        during = samples(broker)
        assert during["braidmq_connections"] == 1
        assert during["braidmq_listener_sockets"] == 1
        assert during["braidmq_sessions"] == 1
        assert during["braidmq_subscriptions"] == 1
        assert during["braidmq_retained_messages"] == before["braidmq_retained_messages"] + 1
        assert during["braidmq_connects_total"] == before["braidmq_connects_total"] + 1
        assert during["braidmq_messages_received_total"] == before["braidmq_messages_received_total"] + 2
        assert during["braidmq_messages_sent_total"] == before["braidmq_messages_sent_total"] + 2
        assert during["braidmq_received_bytes_total"] - before["braidmq_received_bytes_total"] == 35
        assert during["braidmq_sent_bytes_total"] - before["braidmq_sent_bytes_total"] == 21
        assert during["process_resident_memory_bytes"] > 1_000_000
        client.sendall(b"\xff\xff\xff\xff\xff")
        assert client.recv(100) == b""
    wait_until_left(broker)
    assert samples(broker)["braidmq_packets_malformed_total"] == before["braidmq_packets_malformed_total"] + 1


def wait_until_left(broker: Broker) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while samples(broker)["braidmq_connections"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_format_is_what_the_scraper_asks_for(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    assert get(broker, "/metrics")[1].startswith("text/plain; version=")
    _, content_type, text = get(broker, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


def test_health_readiness_and_the_index(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    status, content_type, body = get(broker, "/health")
    assert (status, content_type) == (200, "application/json; charset=utf-8")
    assert json.loads(body)["status"] == "ok"
    status, _, body = get(broker, "/ready")
    assert (status, json.loads(body)) == (200, {"status": "ready"})
    status, content_type, body = get(broker, "/")
    assert (status, content_type) == (200, "text/plain; charset=utf-8")
    assert all(path in body for path in ("/metrics", "/health", "/ready"))
    assert get(broker, "/elsewhere")[0] == 404


def test_the_token_is_asked_for(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN + 'token = "open sesame"\n')
    for path in ("/", "/metrics", "/ready", "/elsewhere"):
        status, _, body = get(broker, path)
        assert status == 401
        assert "open sesame" not in body
    for wrong in ("Bearer open", "Bearer ", "Basic open sesame", "open sesame", "Bearer \u00e9"):
        assert get(broker, "/metrics", Authorization=wrong)[0] == 401
    assert get(broker, "/metrics", Authorization="Bearer open sesame")[0] == 200
    assert get(broker, "/metrics", Authorization="bearer open sesame")[0] == 200
    assert get(broker, "/health")[0] == 200


MALFORMED = {
    "two lengths": (
        b"POST /publish HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length can't be present with Transfer-Encoding",
    ),
    "garbage": (bytes(range(128, 256)) * 3 + b"\r\n\r\n", "Invalid method encountered"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512), "Received HTTPS traffic on an HTTP port"),
    "MQTT": (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01m", "Invalid method encountered"),
    "long header": (
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame" + b"a" * 20_000 + b"\r\n\r\n",
        "Got more than 8190 bytes when reading",
    ),
    "long path": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", "Got more than 8190 bytes when reading"),
    "bad header": (b"GET / HTTP/1.1\r\nHost: x\r\nA \x01: sesame\r\n\r\n", "Invalid header token"),
    "bad length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "Invalid character in Content-Length"),
    "bad chunk": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nQ\r\nsesame\r\n",
        "Invalid character in chunk size",
    ),
}


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_malformed_request_is_worth_one_line(start_broker: StartBroker, level: str) -> None:
    broker = start_broker(f'{ADMIN}[log]\nlevel = "{level}"\n')
    for count, (raw, problem) in enumerate(MALFORMED.values(), start=1):
        assert exchanged(broker, raw).startswith(b"HTTP/1.0 400 Bad Request\r\n")
        wait_until(lambda: broker.log.count("malformed") == count, "one line more", 30)  # noqa: B023
        last = next(line for line in reversed(broker.log.splitlines()) if "malformed" in line)
        assert last.endswith(f" a request from 127.0.0.1: it is malformed: {problem}")
    assert "sesame" not in broker.log, "what was sent is nobody's business: it may be a token"
    assert "Traceback" not in broker.log
    assert get(broker, "/health")[0] == 200


def exchanged(broker: Broker, raw: bytes) -> bytes:
    """The whole answer to these bytes, behind which the broker closes."""
    with socket.create_connection(("127.0.0.1", broker.port_of("http")), timeout=30) as client:
        client.sendall(raw)
        return b"".join(iter(partial(client.recv, 65_536), b""))


def test_malformed_requests_fill_no_disk(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    for _ in range(100):
        assert b" 400 " in exchanged(broker, b"\xff\xff\r\n\r\n")
    assert 0 < broker.wait_for_log("malformed", 30).count("malformed") <= 2 * LINES_EACH_MAX  # at most two spans


def test_bodies_that_cannot_be_read_leave_no_traceback(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    head = b"POST /publish HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    assert b" 400 " in exchanged(broker, head + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd")
    with socket.create_connection(("127.0.0.1", broker.port_of("http")), timeout=30) as client:
        client.sendall(head + b"Content-Length: 30\r\nExpect: 100-continue\r\n\r\nabc")
        assert client.recv(100).startswith(b"HTTP/1.1 100 Continue")  # the body is being read; it leaves now
    broker.wait_for_log("a request from 127.0.0.1: it is malformed: Connection lost", 30)
    assert "Traceback" not in broker.log


def test_only_reading_is_possible(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(broker.address("http") + "/metrics", data=b"x"), timeout=PATIENCE_S)
    assert refused.value.code == 405


# The server itself, in the test's loop.


def server(admin: AdminConfig, **reasons: str | None) -> AdminServer:
    core = Core(clock=time.monotonic, wall=time.time)
    exposition = Exposition(core.metrics, Listeners(Config(listeners=(Listener(port=0),)), core))
    return AdminServer(admin, exposition, {name: partial(reasons.get, name) for name in reasons})


async def test_not_ready_gives_the_reasons() -> None:
    running = server(AdminConfig(port=0), listeners=None, store="the disk is full")
    await running.start()
    async with aiohttp.ClientSession() as http, http.get(running.addresses[0] + "/ready") as response:
        assert response.status == 503
        assert await response.json() == {"status": "not ready", "reasons": {"store": "the disk is full"}}
    await running.stop()
    assert running.addresses == []


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)
    running = server(AdminConfig(port=0))
    await running.start()
    async with aiohttp.ClientSession() as first, aiohttp.ClientSession() as second, aiohttp.ClientSession() as third:
        for http in (first, second):
            async with http.get(running.addresses[0] + "/health") as response:
                assert response.status == 200
                await response.read()
        with pytest.raises(aiohttp.ClientError):
            await third.get(running.addresses[0] + "/health")
    await running.stop()


async def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"'admin' cannot listen on 127.0.0.1:{port}: the port is in use"):
            await server(AdminConfig(port=port)).start()


def test_every_number_has_one_name_everywhere() -> None:
    metrics = Metrics(**{name: number for number, name in enumerate(Metrics.__struct_fields__, 1)})
    values = {measure.attribute: value for measure, value in readings(metrics)}
    assert values == {name: getattr(metrics, name) for name in Metrics.__struct_fields__}
    for names in ([measure.name for measure in METRICS], [measure.topic for measure in METRICS]):
        assert len(set(names)) == len(names)
