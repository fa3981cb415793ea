"""Log lines about what clients did: they say who it was and what was wrong, cannot be forged, and are not too many."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from braidmq.broker.notices import LINES_EACH_MAX, LINES_MAX, NAME_CHARS_MAX, SPAN_S, ClientNotices, described
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Origin, Refusal
from braidmq.security.passwords import set_password
from braidmq.server.log_lines import JsonLines, TextLines
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Rules, Type, World
from tests.raw import Client

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

SECRET = "open sesame, said the forty-first thief"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
FORGED = "x\n12:00:00 INFO     all is well\r\x1b[2K\u2028\u0085\u202e"

RULES = """
[[access.rules]]
allow = ["publish", "subscribe"]
topics = ["open/#"]
"""

both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


class Bouncer:
    """Refuses everybody but ann."""

    def authenticate(self, credentials: Credentials) -> Identity | Refusal:
        if credentials.username == "ann":
            return Identity("ann")
        return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "not on the list")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "braidmq.broker")
    return caplog


@pytest.fixture
def guarded(start_broker: StartBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Broker:
    """A broker with a password file and access rules; its lines are in the format that the test asks for."""
    path = str(tmp_path / "passwords")
    set_password(path, "alice", SECRET)
    log_format = getattr(request, "param", "text")
    return start_broker(
        f'[authentication]\npassword_file = "{path}"\n{RULES}\n[log]\nformat = "{log_format}"\n', arguments=[]
    )


def address_of(client: Client) -> str:
    host, port = client.socket.getsockname()
    return f"{host}:{port}"


# Who, and what was wrong


@both_versions
def test_a_refused_login_says_who_it_was(guarded: Broker, version: int) -> None:
    with Client(guarded, "lamp-7", version, username="alice", password=b"a wrong password") as client:
        assert not client.accepted
        log = guarded.wait_for_log("lamp-7", 30)
        line = next(line for line in log.splitlines() if "lamp-7" in line)
        assert f"client 'lamp-7', user 'alice', from {address_of(client)}: " in line
        assert "Bad user name or password" in line
    assert "a wrong password" not in log
    with Client(guarded, "lamp-8", version) as client:
        assert not client.accepted
        assert f"client 'lamp-8', anonymous, from {address_of(client)}: Not authorized" in guarded.wait_for_log(
            "lamp-8"
        )


@both_versions
def test_a_token_is_never_written(guarded: Broker, version: int) -> None:
    """Not as the password, and not where a client puts it by mistake."""
    with Client(guarded, "lamp-9", version, username=TOKEN, password=TOKEN.encode()) as client:
        assert not client.accepted
    assert "client 'lamp-9', user (a token), from" in guarded.wait_for_log("lamp-9")
    assert "eyJ" not in guarded.log


@both_versions
@pytest.mark.parametrize("guarded", ["text", "json"], indirect=True)
def test_a_refused_publication_and_a_refused_subscription(guarded: Broker, version: int) -> None:
    with Client(guarded, "lamp-7", version, username="alice", password=SECRET.encode()) as client:
        assert client.accepted
        client.publish("open/a", b"x", 1)
        assert client.subscribe("open/#", 0) == 0
        for qos in (0, 1, 2):
            client.publish(f"shut/{qos}", b"x", qos)
        assert client.subscribe("shut/#", 0) >= 0x80
        who = f"client 'lamp-7', user 'alice', from {address_of(client)}: may not"
        log = guarded.wait_for_log("may not subscribe", 30)
    for qos in (0, 1, 2):
        assert f"{who} publish to 'shut/{qos}'" in log
    assert f"{who} subscribe to 'shut/#': " in log
    assert log.count("may not") == 4
    assert SECRET not in log


@both_versions
def test_a_refused_will_says_whose_it_is(version: int, lines: pytest.LogCaptureFixture) -> None:
    peer = World(access=Rules(), authenticator=Bouncer()).peer(version)
    will = wire.Will("secret/1")
    peer.send(wire.connect("c", version=version, username="ann", password=b"pw", will=will))
    assert peer.link.closed
    assert "client 'c', user 'ann', from local: a will for 'secret/1' is not allowed" in lines.text


def test_a_verdict_that_comes_in_the_exchange_of_enhanced_authentication(lines: pytest.LogCaptureFixture) -> None:
    class Never:
        name = "never"
        final_data = None

        def begin(self, credentials: Credentials) -> Never:
            return self

        def step(self, data: bytes | None) -> Refusal:
            return Refusal(Reason.NOT_AUTHORIZED, "never")

    peer = World(methods={"never": Never()}).peer()
    peer.send(wire.connect("c", username="bob", properties=wire.props(auth_method="never", auth_data=b"hush")))
    peer.expect_refused(0x87)
    assert "client 'c', user 'bob', from local: never" in lines.text
    assert "hush" not in lines.text


def test_a_certificate_is_named() -> None:
    origin = Origin("tls", "192.0.2.1:5000", "device-7", ("device-7.example",))
    assert described("c", None, origin) == "client 'c', certificate 'device-7', from 192.0.2.1:5000"
    assert described("c", "u", origin) == "client 'c', user 'u', certificate 'device-7', from 192.0.2.1:5000"
    origin = Origin("tls", "192.0.2.1:5000", None, ("device-7.example",))
    assert described("c", None, origin) == "client 'c', certificate 'device-7.example', from 192.0.2.1:5000"
    assert described(None, None, origin) == "a connection from 192.0.2.1:5000"


# Names that mean harm


@pytest.mark.parametrize("guarded", ["text", "json"], indirect=True)
def test_no_name_can_forge_a_line(guarded: Broker) -> None:
    before = len(guarded.log.splitlines())
    with Client(guarded, FORGED, username=FORGED, password=b"no") as client:
        assert not client.accepted
    guarded.wait_for_log("Bad user name or password", 30)
    with Client(guarded, FORGED, username="alice", password=SECRET.encode()) as client:
        client.publish(f"shut/{FORGED}", b"x", 1)
        client.subscribe(f"shut/{FORGED}")
        client.send(wire.subscribe(9, (f"{FORGED}#/x", 0)))  # no filter: the reason quotes it
        client.expect_end()
    log = guarded.wait_for_log("(0x8F)", 30)
    new = log.splitlines()[before:]
    assert len(new) == 4, new
    assert not any(line.startswith("12:00:00 INFO     all is well") for line in new)
    assert not any(c in log for c in "\r\x1b\u2028\u0085\u202e")
    if new[0].startswith("{"):
        assert all(json.loads(line)["message"].startswith("client 'x\\n12:00:00") for line in new)


def test_long_names_are_cut(lines: pytest.LogCaptureFixture) -> None:
    world = World(access=Rules())
    peer = world.client("c" * 60_000)
    peer.send(wire.publish("secret/" + "t" * 60_000, b"x"))
    peer.send(wire.subscribe(1, ("secret/" + "f" * 60_000, 0)))
    peer.expect(Type.SUBACK)
    peer.send(wire.publish("+" * 60_000, b"x"))
    peer.expect(Type.DISCONNECT)
    assert len(lines.records) == 3
    for record in lines.records:
        assert f"client '{'c' * NAME_CHARS_MAX}'…, anonymous, from local" in record.getMessage()
        assert len(record.getMessage()) < 1_300


def formatted(formatter: logging.Formatter, text: str, *arguments: object, error: Exception | None = None) -> str:
    exc_info = (type(error), error, None) if error is not None else None
    return formatter.format(logging.LogRecord("braidmq.x", logging.INFO, "", 1, text, arguments, exc_info))


def test_whatever_is_logged_stays_on_its_line() -> None:
    """The formats hold even for a line whose author forgot to quote what came from outside."""
    text = formatted(TextLines(), "told: %s", FORGED)
    assert len(text.splitlines()) == 1
    assert "told: x\\n12:00:00 INFO" in text
    found = json.loads(formatted(JsonLines(), "told: %s", FORGED + "\ud800"))
    assert found["message"].startswith("told: x\\n12:00:00")
    assert len(formatted(TextLines(), "%s", "x" * 1_000_000)) < 5_000
    assert len(formatted(JsonLines(), "%s", "x" * 1_000_000)) < 5_000
    shown = formatted(TextLines(), "failed", error=ValueError(FORGED)).splitlines()
    assert len(shown) > 1
    assert all(line.startswith("    ") for line in shown[1:])
    assert len(formatted(JsonLines(), "failed", error=ValueError(FORGED)).splitlines()) == 1


# Not too many


def test_one_client_fills_no_disk(lines: pytest.LogCaptureFixture) -> None:
    world = World(access=Rules())
    noisy, quiet = world.client("noisy"), world.client("quiet")
    for _ in range(1_000):
        noisy.send(wire.publish("secret/1", b"x"))
    assert len(lines.records) == LINES_EACH_MAX
    quiet.send(wire.publish("secret/2", b"x"))
    assert "client 'quiet'" in lines.records[-1].getMessage()
    world.advance(SPAN_S + 1)
    assert lines.records[-1].getMessage() == f"{1_000 - LINES_EACH_MAX} more lines like these were left out in 60 s"
    lines.clear()
    world.advance(10 * SPAN_S)
    assert not lines.records, "it is said once"
    noisy.send(wire.publish("secret/1", b"x"))
    assert "client 'noisy'" in lines.text


@pytest.mark.parametrize(
    "wrong", [wire.connect("c", username="bob", password=b"x"), b"\x10\x00", b"GET / HTTP/1.1\r\n"]
)
def test_connections_from_one_address_fill_no_disk(wrong: bytes, lines: pytest.LogCaptureFixture) -> None:
    world = World(authenticator=Bouncer())
    for _ in range(200):
        world.peer().send(wrong)
    assert len(lines.records) == LINES_EACH_MAX
    world.advance(SPAN_S + 1)
    assert lines.records[-1].getMessage().startswith(f"{200 - LINES_EACH_MAX} more lines")


def test_many_together_fill_no_disk(lines: pytest.LogCaptureFixture) -> None:
    world = World(access=Rules())
    for number in range(3 * LINES_MAX):
        world.client(f"c{number}").send(wire.publish("secret/1", b"x"))
    assert len(lines.records) == LINES_MAX
    world.advance(SPAN_S + 1)
    assert lines.records[-1].getMessage().startswith(f"{2 * LINES_MAX} more lines")


def test_what_was_left_out_is_said_before_the_next_span_begins(lines: pytest.LogCaptureFixture) -> None:
    """Also if the next line comes before the time that was asked for has been noticed."""
    now = [0.0]
    asked: list[float] = []
    log = logging.getLogger("braidmq.broker")
    told = ClientNotices(log, lambda: now[0], lambda when, _: asked.append(when))
    for _ in range(LINES_EACH_MAX + 5):
        told.say("x", "x", "did %s", "it")
    assert asked == [SPAN_S]
    now[0] = 2 * SPAN_S
    told.say("x", "x", "did it again")
    assert [record.getMessage() for record in lines.records[-2:]] == [
        "5 more lines like these were left out in 60 s",
        "x: did it again",
    ]


def test_what_is_remembered_is_bounded(lines: pytest.LogCaptureFixture) -> None:
    told = ClientNotices(logging.getLogger("braidmq.broker"), lambda: 1.0, lambda _when, _action: None)
    for number in range(100_000):
        told.say(f"{number}", "x", "did it")
    assert len(told._lines) == LINES_MAX
