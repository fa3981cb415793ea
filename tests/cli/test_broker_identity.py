"""A broker's identity in its braid: real processes that are restarted, renamed, copied, named twice, misconfigured."""

from __future__ import annotations

import json
import queue
import re
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from braidmq.braid.identity import IDENTITY_ROW, BrokerIdentity
from braidmq.braid.membership.upkeep import COMPARE_S
from braidmq.broker.journal_store import JournalStore
from braidmq.overlay.ring import CHECK_INTERVAL_S
from tests.cli.commands import in_process
from tests.conftest import Broker, StartBroker
from tests.raw import readiness, wait_until
from tests.store_rows import rows

TIMEOUT_S = 60.0
FIRST = ("--braid", "127.0.0.1:0", "--admin-port", "0")


def place_of(broker: Broker) -> str:
    """Where other brokers reach it."""
    return broker.address("braid").removeprefix("braid://")


def join(start_broker: StartBroker, first: Broker, *words: str, data: Path | None = None) -> Broker:
    """Another broker of the braid, as in the README: on any free port."""
    return start_broker(data=data, arguments=["--join", place_of(first), "--admin-port", "0", *words])


def asked(broker: Broker, path: str = "/braid") -> Any:
    with urlopen(broker.address("http") + path, timeout=TIMEOUT_S) as response:
        return json.load(response)


def until_ready(*brokers: Broker) -> None:
    wait_until(lambda: all(readiness(one)[0] == 200 for one in brokers), "all are in the braid", TIMEOUT_S)


def why_not(broker: Broker) -> str:
    """Why it is not ready, once it knows more than that it is not in yet."""
    wait_until(lambda: " at " in str(readiness(broker)[1]), "it is said why the broker is not ready", TIMEOUT_S)
    status, body = readiness(broker)
    assert status == 503
    return str(body["reasons"]["braid"])


def ring(broker: Broker) -> list[str]:
    """The names of all brokers, if every one of them is healthy."""
    ring = asked(broker, "/braid/ring")["brokers"]
    return [one["name"] for one in ring] if all(one["is_healthy"] for one in ring) else []


def until_ring(broker: Broker, *names: str) -> None:
    wait_until(lambda: ring(broker) == sorted(names), f"the ring is {names}, all healthy", TIMEOUT_S)


def until_checked(*brokers: Broker) -> None:
    """Until they have looked after their links and compared what they know, by their own clocks."""
    due = {one: asked(one)["age_s"] + CHECK_INTERVAL_S + COMPARE_S for one in brokers}
    wait_until(lambda: all(asked(one)["age_s"] > age_s for one, age_s in due.items()), "the checks are due", TIMEOUT_S)


class Durable:
    """The client `dur`, whose session stays when it goes; subscribed to m/#, unless its session is."""

    def __init__(self, broker: Broker) -> None:
        self.was_there = False
        self._got: queue.Queue[str] = queue.Queue()
        ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "dur", clean_session=False)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.on_message = lambda _client, _data, message: self._got.put(message.payload.decode())
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        assert ready.wait(TIMEOUT_S)

    def _on_connect(self, client: paho.Client, _data: Any, flags: paho.ConnectFlags, *_: Any) -> None:
        self.was_there = flags.session_present
        client.subscribe("m/#", 1)

    def goes(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def gets(self) -> str:
        """What waited for it, or comes soon; then it goes."""
        text = self._got.get(timeout=TIMEOUT_S)
        self.goes()
        return text


def got(broker: Broker) -> str:
    """What the client finds in its session, which must be there."""
    client = Durable(broker)
    assert client.was_there, "its session is gone"
    return client.gets()


def pub(broker: Broker, text: str) -> None:
    done = in_process("pub", "-p", broker.port, "m/1", text, "-q", "1")
    assert done.returncode == 0, done.stderr


def complaints(broker: Broker, about: str) -> list[str]:
    """Lines of its log about an address, but for those that say that there is a link, or two at a time."""
    no_complaints = ("is linked to", "dialled at the same time")
    return [line for line in broker.log.splitlines() if about in line and not any(one in line for one in no_complaints)]


@pytest.mark.parametrize("ending", ["terminate", "kill9"])
def test_a_restart_at_another_address_keeps_what_was_acknowledged(start_broker: StartBroker, ending: str) -> None:
    first = start_broker(arguments=[*FIRST])
    second = join(start_broker, first)
    until_ready(first, second)
    before, where = asked(second), place_of(second)
    Durable(second).goes()
    pub(second, "x")
    getattr(second, ending)()
    second.start()
    assert place_of(second) != where
    wait_until(lambda: bool(asked(second)["is_in"]), "it is in the braid again", TIMEOUT_S)
    assert got(second) == "x"
    after = asked(second)
    assert (after["name"], after["identity"]) == (before["name"], before["identity"])
    until_ring(first, asked(first)["name"], after["name"])
    pub(first, "y")
    assert got(second) == "y"


def test_the_name_may_change_and_the_broker_stays_the_same(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=first"])
    old = join(start_broker, first, "--set", "braid.name=old", data=tmp_path / "d")
    until_ready(first, old)
    identity = asked(old)["identity"]
    Durable(old).goes()
    old.terminate()
    pub(first, "missed")
    new = join(start_broker, first, "--set", "braid.name=new", data=tmp_path / "d")
    until_ring(first, "first", "new")
    assert got(new) == "missed"
    assert asked(new)["identity"] == identity
    assert "called 'new' from now on, and was called 'old'" in new.log
    new.terminate()
    unnamed = join(start_broker, first, data=tmp_path / "d")
    until_ring(first, "first", "new")
    assert asked(unnamed)["name"] == "new"


def test_a_store_of_the_release_before_goes_on(start_broker: StartBroker, tmp_path: Path) -> None:
    """That kept the number of its history alone, and a broker without a name was called by its address."""
    first = start_broker(arguments=[*FIRST], data=tmp_path / "d")
    until_ready(first)
    address, number = place_of(first), int(asked(first)["identity"].partition("#")[2], 16)
    first.terminate()
    store = JournalStore(tmp_path / "d")
    own = msgspec.msgpack.decode(rows(store, "cursor")[IDENTITY_ROW], type=BrokerIdentity)
    store.save_cursor(IDENTITY_ROW, msgspec.msgpack.encode((own.history, own.alive_at)))
    store.commit()
    store.close()
    again = start_broker(arguments=["--braid", address, "--admin-port", "0"], data=tmp_path / "d")
    until_ready(again)
    assert asked(again)["name"] == address
    assert asked(again)["history"]["origin"] == f"{address}#{number:x}"
    again.terminate()
    moved = start_broker(arguments=[*FIRST], data=tmp_path / "d")
    until_ready(moved)
    assert place_of(moved) != address
    assert asked(moved)["identity"] == f"{address}#{number:x}"


def test_a_name_that_is_in_use_is_refused_until_it_is_free(start_broker: StartBroker) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=s1"])
    second = join(start_broker, first, "--set", "braid.name=s2")
    until_ready(first, second)
    until_ring(first, "s1", "s2")
    other = join(start_broker, first, "--set", "braid.name=s2")
    reason = why_not(other)
    assert place_of(other) in reason
    assert place_of(second) in reason
    assert "'s2'" in reason
    assert "braid.name" in reason
    assert reason in other.log
    assert reason in first.log + second.log
    assert asked(other)["trouble"] == reason
    until_ready(first, second)
    until_ring(first, "s1", "s2")
    Durable(second).goes()
    pub(first, "z")
    assert got(second) == "z"
    second.terminate()
    until_ready(other)
    until_ring(first, "s1", "s2")


def test_a_copy_of_a_store_is_refused_under_any_name(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=s1"])
    second = join(start_broker, first, "--set", "braid.name=s2", data=tmp_path / "d")
    until_ready(first, second)
    second.terminate()
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    second.start()
    until_ready(second)
    copy = join(start_broker, first, "--set", "braid.name=s3", data=tmp_path / "copy")
    reason = why_not(copy)
    assert place_of(copy) in reason
    assert place_of(second) in reason
    assert "copy" in reason
    until_ring(first, "s1", "s2")


def test_another_method_is_refused_and_disturbs_nobody(start_broker: StartBroker) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=s1"])
    second = join(start_broker, first, "--set", "braid.name=s2")
    until_ready(first, second)
    other = join(start_broker, first, "--set", "braid.name=s3", "--set", "braid.method=relayfree")
    reason = why_not(other)
    assert f"braid.method is 'relayfree' at {place_of(other)} and 'covers' at {place_of(first)}" in reason
    first.wait_for_log(f"braid.method is 'covers' at {place_of(first)} and 'relayfree' at {place_of(other)}")
    assert reason in other.log
    until_ring(first, "s1", "s2")
    until_ready(first, second)
    assert not re.search("Invalid value|does not know", first.log + second.log + other.log)
    assert len(complaints(first, place_of(other))) == 1, "not at each of its tries"
    other.terminate()
    until_ready(first, second)


def test_one_that_has_left_is_not_missed(start_broker: StartBroker) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=s1", "--log-level", "debug"])
    second = join(start_broker, first, "--set", "braid.name=s2", "--log-level", "debug")
    third = join(start_broker, first, "--set", "braid.name=s3")
    until_ring(first, "s1", "s2", "s3")
    pub(third, "x")
    third.terminate()
    until_ring(first, "s1", "s2")
    until_checked(first, second)
    for broker in (first, second):
        broker.wait_for_log(f"{place_of(third)} has left")
        assert len(complaints(broker, place_of(third))) == 1, broker.log
    third.start()
    until_ring(first, "s1", "s2", "s3")


def test_one_that_has_crashed_is_told_of_once_and_when_it_is_back(start_broker: StartBroker) -> None:
    first = start_broker(arguments=[*FIRST, "--set", "braid.name=s1"])
    other = start_broker(arguments=["--set", "braid.name=s2", "--join", place_of(first), *FIRST])
    until_ring(first, "s1", "s2")
    where = place_of(other)
    other.kill9()
    wait_until(lambda: len(ring(first)) == 1, "the ring is closed without it", TIMEOUT_S)
    until_checked(first)
    assert len(complaints(first, where)) == 1, first.log
    other._arguments = ["--set", "braid.name=s2", "--join", place_of(first), "--braid", where, "--admin-port", "0"]
    other.start()
    until_ring(first, "s1", "s2")
    first.wait_for_log(f"is linked to {where} ('s2') again")
    assert len(complaints(first, where)) == 1, first.log
