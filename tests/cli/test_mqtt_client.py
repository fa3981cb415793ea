"""`pub` and `sub` as people and scripts use them: real processes against a real broker."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from braidmq.cli.errors import UsageError
from braidmq.cli.mqtt_client.messages import as_text, check_format
from braidmq.cli.mqtt_client.options import BrokerAddress, parse_url
from tests.cli.commands import COMMAND, TIMEOUT_S, WAIT_S, Argument, braidmq, environment, in_process
from tests.cli.mqtt import Sub, pub, send, silent_server, subscriber
from tests.conftest import Broker, StartBroker

# Publish and subscribe


@pytest.mark.parametrize(("version", "qos"), [("5", 0), ("5", 2), ("3.1.1", 1), ("3.1.1", 2)])
def test_a_message_gets_through(broker: Broker, version: str, qos: int) -> None:
    topic = f"cli/through/{version}/{qos}"
    with subscriber(broker, f"cli/through/{version}/+", "-q", qos, "-C", 1, "-V", version, "--json") as sub:
        done = pub(broker, topic, "grüße", "-q", qos, "-V", version, "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["acknowledged"] is (qos > 0)
        assert (result["topic"], result["qos"], result["bytes"]) == (topic, qos, 7)
        code, out = sub.end()
    assert code == 0
    message = json.loads(out)
    assert message["topic"] == topic
    assert (message["payload"], message["encoding"]) == ("grüße", "utf-8")
    assert (message["qos"], message["retain"], message["dup"]) == (qos, False, False)
    assert "T" in message["received_at"]


def test_json_shows_all_properties(broker: Broker) -> None:
    with subscriber(broker, "cli/properties", "-C", 1, "--json", "--subscription-id", 7) as sub:
        options = "--user-property k=v --user-property k=w --content-type text/plain --response-topic answers"
        more = "--correlation-data 42 --expiry 60 --payload-format-utf8"
        assert pub(broker, "cli/properties", "-m", "x", *options.split(), *more.split()).returncode == 0
        _, out = sub.end()
    message = json.loads(out)
    assert message["properties"] == {
        "payload_format_indicator": 1,
        "message_expiry_s": 60,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": "NDI=",
        "user_properties": [["k", "v"], ["k", "w"]],
    }
    assert message["subscription_ids"] == [7]


def test_readable_output_shows_time_topic_payload_and_hides_control_characters(broker: Broker) -> None:
    with subscriber(broker, "cli/readable/#") as sub:
        send(broker, "cli/readable/text", "21.5 °C", qos=0)
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} cli/readable/text \(QoS 0\) 21\.5 °C\n", sub.line())
        braidmq("pub", "-p", broker.port, "-t", "cli/readable/binary", "--stdin", stdin=b"\xff\x00\n")
        assert sub.line().endswith("cli/readable/binary (QoS 0) [3 bytes] ff 00 0a\n")
        send(broker, "cli/readable/escape", "\x1b[31mred")
        assert "\x1b" not in sub.line()


def test_binary_payloads_are_base64_in_json_and_themselves_when_raw(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    with subscriber(broker, "cli/binary", "-C", 1, "--json") as sub, subscriber(broker, "cli/binary", "--raw") as raw:
        assert pub(broker, "cli/binary", "--file", file, "-q", 1).returncode == 0
        message = json.loads(sub.end()[1])
        assert (message["payload"], message["encoding"]) == ("AP8=", "base64")
        assert raw.process.stdout is not None
        assert raw.process.stdout.read(3) == b"\x00\xff\n"


def test_lines_of_standard_input_are_messages_in_order(broker: Broker) -> None:
    lines = [f"line {number}" for number in range(500)]
    with subscriber(broker, "cli/lines", "-q", 1, "-C", len(lines), "--format", "{qos}\\t{payload}") as sub:
        done = braidmq("pub", "-p", broker.port, "cli/lines", "-l", "-q", 1, stdin="\n".join(lines).encode())
        assert done.returncode == 0
        assert "Published 500 messages" in done.stdout
        code, out = sub.end()
    assert code == 0
    assert out.splitlines() == [f"1\t{line}" for line in lines]


def test_repeat_interval_and_topic_alias(broker: Broker) -> None:
    with subscriber(broker, "cli/repeat", "-C", 3, "--format", "{topic} {payload}") as sub:
        began = time.monotonic()
        done = pub(broker, "cli/repeat", "x", "--repeat", 3, "--interval", 0.1, "--topic-alias", 2, "--json")
        assert time.monotonic() - began >= 0.2
        assert len(done.stdout.splitlines()) == 3
        assert sub.end() == (0, "cli/repeat x\n" * 3)


@pytest.mark.parametrize("qos", [1, 2])
def test_publishers_learn_that_nobody_listens(broker: Broker, qos: int) -> None:
    if qos == 1:
        assert "Nobody was subscribed to cli/nobody" in pub(broker, "cli/nobody", "x", "-q", qos).stdout
    done = pub(broker, "cli/nobody", "x", "-q", qos, "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert (result["reason_code"], result["reason"]) == (0x10, "No matching subscribers")


def test_retained_messages_and_how_to_leave_them_out(broker: Broker) -> None:
    topic = "cli/retained"
    assert pub(broker, topic, "kept", "-r", "-q", 1).returncode == 0
    seen = braidmq("sub", "-p", broker.port, topic, "-C", 1, "-W", TIMEOUT_S)
    assert seen.stdout.endswith(f"{topic} (retained) kept\n")
    for options in (["--no-retained"], ["--no-retained", "-V", "3.1.1"]):
        assert braidmq("sub", "-p", broker.port, topic, "-W", 0.3, *options).returncode == 4
    assert pub(broker, topic, "--null", "--retain", "-q", 1).returncode == 0
    assert braidmq("sub", "-p", broker.port, topic, "-W", 0.3).returncode == 4


def test_wait_and_count_decide_the_exit_code(broker: Broker) -> None:
    assert pub(broker, "cli/wait", "x", "-r", "-q", 1).returncode == 0
    with (
        subscriber(broker, "cli/wait", "-W", WAIT_S) as enough,
        subscriber(broker, "cli/wait", "-W", WAIT_S, "-C", 2) as few,
    ):
        assert enough.end()[0] == 0
        assert few.end()[0] == 4
    assert "only 1 of 2 messages" in few.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_subscriber_leaves_cleanly(broker: Broker, number: int) -> None:
    topic = f"cli/leaves/{number}"
    with subscriber(broker, topic, "--format", "{payload}") as witness:
        with subscriber(broker, "cli/leaves/x", "--will-topic", topic, "--will-payload", "will") as leaving:
            assert leaving.end(number) == (0, "")
        send(broker, topic, "after")
        assert witness.line() == "after\n"


def test_a_subscriber_that_dies_leaves_its_will(broker: Broker) -> None:
    with subscriber(broker, "cli/dies", "-C", 1, "--format", "{payload} {retain}") as witness:
        options: list[Argument] = ["--will-topic", "cli/dies", "--will-payload", "gone", "--will-qos", 1]
        with subscriber(broker, "cli/x", *options) as dying:
            dying.end(signal.SIGKILL)
        assert witness.end() == (0, "gone 0\n")


def test_a_closed_pipe_is_a_normal_end(broker: Broker) -> None:
    with subscriber(broker, "cli/pipe") as sub:
        assert sub.process.stdout is not None
        sub.process.stdout.close()
        sub.process.stdout = None
        send(broker, "cli/pipe", "x")
        assert sub.process.wait(TIMEOUT_S) == 0
        assert sub.process.stderr is not None
        assert b"Traceback" not in sub.process.stderr.read()


def test_a_kept_session_gives_each_message_to_one_run(broker: Broker) -> None:
    arguments = ["cli/kept", "-q", "1", "-i", "cli-kept", "--keep-session"]
    with subscriber(broker, *arguments) as first:
        first.end(signal.SIGINT)
    send(broker, "cli/kept", "1", "2", "3")
    for payload in ("1", "2", "3"):
        done = braidmq("sub", "-p", broker.port, *arguments, "-C", 1, "-W", TIMEOUT_S, "--format", "{payload}")
        assert (done.returncode, done.stdout) == (0, f"{payload}\n")
    assert braidmq("sub", "-p", broker.port, *arguments, "-W", 0.3).returncode == 4


def test_a_group_shares_the_messages(broker: Broker) -> None:
    options = ["cli/share", "--share", "group", "--raw"]
    with subscriber(broker, *options) as first, subscriber(broker, *options) as second:
        send(broker, "cli/share", "1", "2", "3", "4")
        outputs: list[Any] = [first.process.stdout, second.process.stdout]
        got = dict.fromkeys(outputs, b"")
        while len(b"".join(got.values()).split()) < 4:
            ready, _, _ = select.select(outputs, [], [], TIMEOUT_S)
            assert ready, got
            for pipe in ready:
                got[pipe] += os.read(pipe.fileno(), 1024)
        assert sorted(b"".join(got.values()).split()) == [b"1", b"2", b"3", b"4"]
        assert all(got.values())


def test_an_interrupted_publisher_ends_with_130(broker: Broker) -> None:
    with subscriber(broker, "cli/interrupted", "-C", 1) as sub:
        process = subprocess.Popen(
            [*COMMAND, "pub", "-p", str(broker.port), "cli/interrupted", "--stdin-lines"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert sub.end()[0] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert b"Traceback" not in process.communicate()[1]


def test_reconnect_comes_back_to_a_broker_that_crashed(start_broker: StartBroker) -> None:
    broker = start_broker()
    with subscriber(broker, "cli/again", "--reconnect", "--format", "{payload}") as sub:
        sub.stderr = ""
        broker.kill9()
        sub.wait_for("Trying again")
        broker.start()
        sub.wait_for("Subscribed to")
        send(broker, "cli/again", "back")
        assert sub.line() == "back\n"


def test_the_end_of_the_broker_is_an_error_with_its_reason(start_broker: StartBroker) -> None:
    broker = start_broker()
    with subscriber(broker, "a") as sub:
        assert broker.terminate() == 0
        assert sub.end()[0] == 1
        assert "Server shutting down" in sub.stderr


# What goes wrong


def test_no_connection_is_exit_code_3() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for command in (["pub", "a", "b"], ["sub", "a"]):
            done = in_process(*command, "-p", port)
            assert done.returncode == 3
            assert f"nothing listens at mqtt://127.0.0.1:{port}" in done.stderr
            assert "braidmq up" in done.stderr
    assert "no host named" in in_process("pub", "a", "b", "-h", "no-such-host.invalid").stderr
    assert in_process("pub", "a", "b", "--url", "unix:/no/such/socket").returncode == 3


def test_a_server_that_says_nothing_is_exit_code_3() -> None:
    with silent_server(lambda _: b"") as port:
        done = in_process("pub", "a", "b", "-p", port, "--timeout", 0.3)
    assert done.returncode == 3
    assert "did not answer in 0.3 s" in done.stderr


def test_a_missing_acknowledgement_is_exit_code_4() -> None:
    with silent_server(lambda _: b"\x20\x03\x00\x00\x00") as port:
        done = in_process("pub", "a", "b", "-p", port, "-q", 1, "--timeout", 0.3)
        assert done.returncode == 4
        assert "no acknowledgement for 1 message in 0.3 s" in done.stderr
        assert braidmq("sub", "a", "-p", port, "--timeout", 0.3).returncode == 4


def test_bytes_that_are_not_mqtt_end_without_a_traceback() -> None:
    with silent_server(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        done = in_process("pub", "a", "b", "-p", port, "--timeout", 5)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pub", "a/#", "x"], "wildcard"),
        (["pub", "a"], "nothing to publish"),
        (["pub", "a", "b", "c"], "one word too many"),
        (["pub", "a", "b", "--null"], "more than one source"),
        (["pub", "a", "-f", "/no/such/file"], "cannot be read"),
        (["pub", "a", "b", "-V", "3.1.1", "--expiry", "5"], "--expiry needs MQTT 5"),
        (["pub", "a", "b", "-V", "4"], "not a version of MQTT"),
        (["pub", "a", "b", "--url", "http://localhost"], "mqtt://"),
        (["pub", "a", "b", "--user-property", "novalue"], "has no `=`"),
        (["pub", "a", "b", "--will-qos", "1"], "without --will-topic"),
        (["pub", "a", "b", "--cafile", "/no/such/file"], "no such file"),
        (["sub", "a/b#"], "wildcard"),
        (["sub", "a", "--keep-session"], "without --client-id"),
        (["sub", "a", "--json", "--raw"], "Choose one"),
        (["sub", "a", "--format", "{nothing}"], "{topic}"),
        (["sub", "a", "--share", "a/b"], "group's name"),
    ],
)
def test_what_cannot_be_right_is_exit_code_2(arguments: list[str], words: str) -> None:
    done = in_process(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


# Security


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with users, rules, and a listener of each kind."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    authority.issue_cert("device").private_key_and_cert_chain_pem.write_to_path(str(folder / "device.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    users = folder / "users.txt"
    assert braidmq("passwd", users, "ada", "--stdin", stdin=b"p:w@/\n").returncode == 0
    tls = f'host = "127.0.0.1"\nport = 0\ncertificate = "{folder}/server.pem"\nkey = "{folder}/server.pem"\n'
    config = folder / "braidmq.toml"
    config.write_text(
        f"""
        [authentication]
        password_file = "{users}"
        [access]
        rules = [
            {{ deny = ["publish", "subscribe"], topics = ["secret/#"] }},
            {{ allow = ["publish", "subscribe", "will"], topics = ["#"] }},
        ]
        [[listeners]]
        port = 0
        [[listeners]]
        kind = "tls"
        {tls}
        client_ca = "{folder}/ca.pem"
        client_certificate = "optional"
        [[listeners]]
        kind = "ws"
        port = 0
        [[listeners]]
        kind = "wss"
        {tls}
        [[listeners]]
        kind = "unix"
        path = "{folder}/socket"
        """
    )
    broker = Broker(folder, folder / "data", ["--config", str(config)], None, {})
    yield broker
    broker.kill9()


SECRET = {"BRAIDMQ_PASSWORD": "p:w@/"}


def test_a_password_is_needed_and_found_in_three_places(guarded: Broker) -> None:
    refused = in_process("pub", "a", "b", "-p", guarded.port, "-u", "ada", "-P", "wrong")
    assert refused.returncode == 1
    assert "refused the connection: Bad user name or password" in refused.stderr
    old = braidmq("sub", "a", "-p", guarded.port, "-V", "3.1.1")
    assert old.returncode == 1
    assert "refused the connection: Not authorized" in old.stderr
    assert in_process("pub", "a", "b", "-p", guarded.port, "-u", "ada", "-P", "p:w@/").returncode == 0
    assert in_process("pub", "a", "b", "-p", guarded.port, "-u", "ada", env=SECRET).returncode == 0
    url = guarded.url.replace("mqtt://", "mqtt://ada:p%3Aw%40%2F@")
    assert in_process("pub", "a", "b", "--url", url).returncode == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_publication_is_exit_code_1(guarded: Broker, qos: int) -> None:
    done = in_process("pub", "secret/a", "b", "-p", guarded.port, "-u", "ada", "-q", qos, "--json", env=SECRET)
    assert done.returncode == 1
    assert "the broker refused the message: Not authorized" in done.stderr
    assert json.loads(done.stdout)["acknowledged"] is False


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_refused_subscription_is_exit_code_1(guarded: Broker, version: str) -> None:
    done = braidmq("sub", "a", "secret/#", "-p", guarded.port, "-u", "ada", "-V", version, env=SECRET)
    assert done.returncode == 1
    words = "Not authorized" if version == "5" else "Unspecified error"
    assert f"the broker refused secret/#: {words}" in done.stderr


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss", "unix"])
def test_every_kind_of_listener_can_be_reached(guarded: Broker, scheme: str) -> None:
    address = guarded.address(scheme)
    secure: list[Argument] = ["--cafile", guarded.data.parent / "ca.pem"] if scheme in ("mqtts", "wss") else []
    options: list[Argument] = ["--url", address, "-u", "ada", *secure]
    sub = Sub("cli/kinds", "-C", 1, "--format", "{payload}", *options, env=SECRET)
    assert in_process("pub", "cli/kinds", scheme, "-q", 1, *options, env=SECRET).returncode == 0
    assert sub.end() == (0, f"{scheme}\n")


def test_certificates_are_checked(guarded: Broker) -> None:
    folder = guarded.data.parent
    base: list[Argument] = ["pub", "a", "b", "-h", "localhost", "-p", guarded.port_of("mqtts"), "-u", "ada"]
    untrusted: list[list[Argument]] = [["--tls"], ["--cafile", folder / "other-ca.pem"]]
    for options in untrusted:
        done = in_process(*base, *options, env=SECRET)
        assert done.returncode == 3
        assert "not to be trusted" in done.stderr
        assert "--cafile" in done.stderr
    assert in_process(*base, "--insecure", env=SECRET).returncode == 0
    assert in_process(*base, "--cafile", folder / "ca.pem", "--cert", folder / "device.pem", env=SECRET).returncode == 0
    plain = in_process("pub", "a", "b", "-p", guarded.port, "--tls", "--timeout", TIMEOUT_S)
    assert plain.returncode == 3
    assert "TLS" in plain.stderr


# The parts


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("mqtt://localhost", BrokerAddress("mqtt", "localhost", 1883)),
        ("mqtts://a%40b:c%2F@[::1]:9", BrokerAddress("mqtts", "::1", 9, user="a@b", password="c/")),
        ("WS://host:8083/path", BrokerAddress("ws", "host", 8083, "/path")),
        ("wss://host/", BrokerAddress("wss", "host", 443)),
        ("unix:///run/broker.sock", BrokerAddress("unix", "/run/broker.sock", 1)),
        ("unix:relative.sock", BrokerAddress("unix", "relative.sock", 1)),
    ],
)
def test_urls(url: str, target: BrokerAddress) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize("url", ["localhost", "tcp://host", "mqtt://", "mqtt://host:x", "mqtt://host:70000", "unix:"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        parse_url(url)


def test_text_is_what_a_terminal_can_show() -> None:
    assert as_text("21.5 °C\n\tx".encode()) == "21.5 °C\n\tx"
    assert as_text(b"\xff") is None
    assert as_text(b"\x1b[31m") is None
    assert as_text(b"\r") is None


def test_formats_are_checked_before_anything_is_received() -> None:
    assert check_format(r"{topic:>10}\t{{{payload}}}\n") == "{topic:>10}\t{{{payload}}}\n"
    wrong: list[Any] = ["{", "{unknown}", "{topic.__class__}", "{}", "{qos:q"]
    for text in wrong:
        with pytest.raises(UsageError):
            check_format(text)
