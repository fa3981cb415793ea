"""Processors beside a broker: what they get and say, and that nothing they do stops it."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.processors import Message, Spool, spool_step
from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Output
from tests.conformance.wire import V3, props
from tests.processors.site import ECHO, HEAD, Site, said
from tests.raw import Client, metrics, opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker


def test_a_processor_answers_and_fails_on_what_it_cannot_read(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    listener = site.listener()
    with opened(site.broker, "device") as device:
        for payload in (b"a", b"b", b"\xff", b"c"):
            assert device.publish("in/1", payload, 1) == 0  # not "no matching subscribers"
        assert device.publish("in/2", b"quiet", 1) == 0
        assert device.publish("elsewhere", b"x", 1) == 0x10
    answers = said(listener, 4)
    assert [answers[0], answers[1], answers[3]] == [["a"], ["a", "b"], ["b", "\ufffd", "c"]]
    assert answers[2] == {
        "processor": "echo",
        "what": "payload",
        "message": "the payload is not UTF-8 text: byte 0 of 1",
        "topic": "in/1",
        "offset": 2,
    }
    one = site.wait_for(processed=5)
    assert (one["notified"], one["errors"], one["state"], one["topics"]) == (3, 1, "running", {"edge": 2})
    numbers = metrics(site.broker)
    assert numbers["processor_processed_total"] == 5
    assert numbers["processor_errors_total"] == 1
    assert numbers["processor_queue"] == 0
    assert numbers["processor_up"] == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.binary(max_size=4), st.integers(0, 2), st.booleans()), min_size=1, max_size=40
    )
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_edge_gives_what_the_step_alone_gives(
    shared: tuple[Site, Client], publications: list[tuple[int, bytes, int, bool]]
) -> None:
    """Any topics, payloads, QoS and properties, of a client of each version."""
    site, listener = shared
    before = site.one["processed"]
    run = os.urandom(4).hex()
    with opened(site.broker, "device5") as five, opened(site.broker, "device3", V3) as three:
        for number, payload, qos, is_v5 in publications:
            device = five if is_v5 else three
            device.publish(f"same/{run}{number}", payload, qos)
            device.so_far()  # in this order
    one = load_processor(str(site.file))
    spools: dict[str, Spool] = {}
    expected = []
    for offset, (number, payload, qos, _) in enumerate(publications):
        topic = f"same/{run}{number}"
        spool = spools.setdefault(topic, Spool(one.spool))
        output = spool_step(one, spool, Message(topic, payload, qos, offset=offset))
        expected += [json.loads(output.payload)] if isinstance(output, Output) else []
    site.wait_for(processed=before + len(publications))
    assert said(listener, len(expected)) == expected


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def shared(start_broker: StartBroker, shared_folder: Path) -> tuple[Site, Client]:
    text = (
        HEAD
        + """
@processor(topic="same/#", spool=3, output="out")
def digest(spool, message):
    if len(message.payload) == 2:
        return None
    if len(message.payload) == 3:
        raise ValueError
    return Notification([message.topic, message.qos, [one.payload.hex() for one in spool]])
"""
    )
    site = Site(start_broker, shared_folder, text)
    return site, site.listener("out")


def test_what_a_message_says_of_itself(start_broker: StartBroker, tmp_path: Path) -> None:
    text = (
        HEAD
        + """
@processor(topic="in/+", spool=1, output="out")
def tell(spool, message):
    names = ("topic", "qos", "retain", "origin", "client", "properties", "offset")
    facts = {name: getattr(message, name) for name in names}
    facts["age"] = time.time() - message.published_at
    return Notification(facts, retain=True, properties={"unit": "C", "content-type": "application/json"})
"""
    )
    site = Site(start_broker, tmp_path, text)
    listener = site.listener("out")
    properties = props(user=[("a", "1"), ("b", "2"), ("a", "3")], content_type="text/plain", correlation_data=b"\x01")
    with opened(site.broker, "device") as device:
        device.publish("in/x", b"1", 2, retain=True, properties=properties)
    message = listener.next_message()
    facts = json.loads(message.payload)
    assert 0 <= facts.pop("age") < 60
    assert facts == {
        "topic": "in/x",
        "qos": 2,
        "retain": True,
        "origin": "braidmq",
        "client": "device",
        "properties": [
            ["a", "1"],
            ["b", "2"],
            ["a", "3"],
            ["content-type", "text/plain"],
            ["correlation-data", "AQ=="],
        ],
        "offset": 0,
    }
    assert message.properties["content_type"] == "application/json"
    assert message.properties["user"] == [("unit", "C"), ("processor-hops", "1")]
    with opened(site.broker, "late") as late:  # what it says may be retained
        late.subscribe("out")
        assert json.loads(late.next_message().payload)["client"] == "device"
    with opened(site.broker, "clock") as device:  # a device that says when it measured is believed, as in the log
        device.publish("in/x", b"2", properties=props(user=[("published_at", "2001-09-09T01:46:40+00:00")]))
    assert time.time() - json.loads(listener.next_message().payload)["age"] == pytest.approx(1e9, abs=60)


# Nothing that a processor does stops the broker


def test_a_crash_costs_one_message(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    listener = site.listener()
    with opened(site.broker, "device") as device:
        device.publish_many("in/1", [b"a", b"b", b"crash", b"c", b"d"], 1)
    answers = said(listener, 7)
    assert [one for one in answers if isinstance(one, list)] == [
        ["a"],
        ["a", "b"],
        ["b", "crash", "c"],
        ["crash", "c", "d"],
    ]
    errors = [one for one in answers if isinstance(one, dict)]
    assert {one["what"] for one in errors} == {"crash"}
    assert errors[-1]["message"] == "it ended with exit code 3; left out after 2 tries"
    assert (errors[-1]["topic"], errors[-1]["offset"]) == ("in/1", 2)
    one = site.wait_for(state="running", processed=4, queue=0)
    assert one["restarts"] >= 2
    assert metrics(site.broker)["processor_restarts_total"] == one["restarts"]


@pytest.mark.parametrize("way", ["loop", "swallow"])
def test_an_endless_loop_is_ended(start_broker: StartBroker, tmp_path: Path, way: str) -> None:
    """Also one that does not let itself be interrupted; and other clients notice nothing of it."""
    site = Site(start_broker, tmp_path, settings="time_limit_s = 1.5")
    listener = site.listener()
    with opened(site.broker, "device") as device, opened(site.broker, "other") as other:
        other.subscribe("plain")
        device.send(device.packet("in/1", way.encode()) + device.packet("in/1", b"after"))
        for _ in range(20):
            device.publish("plain", b"x", 1)
            assert other.next_message().payload == b"x"
    answers = said(listener, 4)  # in the first worker it could have been either of two messages
    assert [one["what"] for one in answers[:3]] == ["time", "time", "time"]
    assert answers[2]["message"] == "a message took more than 1.5 s; left out after 2 tries"
    assert (answers[2]["topic"], answers[2]["offset"]) == ("in/1", 0)
    assert answers[3] == [way, "after"]


def test_a_worker_that_is_killed_comes_back_with_its_spools(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    listener = site.listener("out")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
        device.publish("in/2", b"b", 1)
        assert said(listener, 2) == [["a"], ["b"]]
        for _ in range(3):
            pid = site.wait_for(state="running")["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda before=pid: site.one["pid"] != before, "another worker")  # type: ignore[misc]
        device.publish("in/2", b"d", 1)
        device.publish("in/1", b"c", 1)
    assert said(listener, 2) == [["b", "d"], ["a", "c"]]
    assert site.one["errors"] == 3


def test_nothing_is_lost_when_workers_are_killed_under_load(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    listener = site.listener("out")
    payloads = [str(number).encode() for number in range(3000)]
    with opened(site.broker, "device") as device:
        for start in range(0, 3000, 600):
            device.publish_many("in/1", payloads[start : start + 600], 1)
            pid = site.one["pid"]
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
    got = said(listener, 3000)
    assert got == [[one.decode() for one in payloads[max(0, number - 2) : number + 1]] for number in range(3000)]


def test_pauses_between_restarts_grow(start_broker: StartBroker, tmp_path: Path) -> None:
    text = HEAD + "open('starts', 'a').write(f'{time.monotonic()}\\n')\nos.kill(os.getpid(), 9)\n"
    text = text.replace("'starts'", repr(str(tmp_path / "starts")))
    site = Site(start_broker, tmp_path, text)
    starts = tmp_path / "starts"
    wait_until(lambda: len(starts.read_text().split()) >= 5, "five starts")
    times = [float(one) for one in starts.read_text().split()]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=False)), pauses
    assert site.one["problem"] == "it was ended by signal 9"
    with opened(site.broker, "device") as device:  # the broker serves all the same
        device.subscribe("x")
        device.publish("x", b"1", 1)
        assert device.next_message().payload == b"1"


def test_a_worker_ends_with_its_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, settings="time_limit_s = 600")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"loop", 1)
    pid = site.wait_for(queue=1)["pid"]
    site.broker.kill9()
    wait_until(lambda: not _is_running(pid), "the worker has ended")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_full_queue_drops_what_is_least(start_broker: StartBroker, tmp_path: Path) -> None:
    more = "[processing]\nqueue_qos0_max = 10\nqueue_messages_max = 20\n"
    site = Site(start_broker, tmp_path, settings="time_limit_s = 600", more=more)
    errors = site.listener("$processor/+/errors")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"loop", 1)
        for _ in range(15):
            device.publish("in/1", b"zero")
        assert device.so_far() == []
        assert (site.one["queue"], site.one["dropped"]) == (10, 6)
        for _ in range(12):
            assert device.publish("in/1", b"one", 1) == 0
        assert (site.one["queue"], site.one["dropped"]) == (20, 8)
    assert [one["what"] for one in said(errors, 2)] == ["queue", "queue"]


def test_reports_have_a_bound(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    errors = site.listener("$processor/+/errors")
    with opened(site.broker, "device") as device:
        device.publish_many("in/1", [b"\xff"] * 500, 1)
    site.wait_for(errors=500)
    time.sleep(1.1)
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"\xff", 1)
    site.wait_for(errors=501)
    found = [json.loads(one.payload) for one in errors.so_far()]
    assert 11 <= len(found) < 300
    assert sum(1 + one.get("left_out", 0) for one in found) == 501


# Loops


def test_processors_that_feed_each_other_go_round_a_few_times(start_broker: StartBroker, tmp_path: Path) -> None:
    text = (
        HEAD
        + """
@processor(topic="ping", spool=1, output="pong")
def ping(spool, message):
    return Notification(message.payload + b".")

@processor(topic="pong", spool=1, output="ping")
def pong(spool, message):
    return Notification(message.payload + b".")
"""
    )
    path = tmp_path / "one.py"
    site = Site(start_broker, tmp_path, text, more=f'[[processor]]\nfile = "{path}:ping"')
    site.config.write_text(site.config.read_text().replace('one.py"', 'one.py:pong"'))
    site.reload()
    wait_until(lambda: [one["state"] for one in site.processors] == ["running"] * 2, "both run")
    errors = site.listener("$processor/+/errors", "ping", "pong")
    with opened(site.broker, "device") as device:
        device.publish("ping", b"x", 1)
    found = [one.payload for one in errors.messages(10)]
    assert found[:9] == [b"x" + b"." * number for number in range(9)]
    assert json.loads(found[9])["what"] == "loop"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('output = "in/alerts"', "go round for ever"),
        ('topic = "#"', "go round for ever"),
        ('name = "a/b"', "leave out / + #"),
    ],
)
def test_a_processor_that_cannot_be_is_refused_and_can_be_mended(
    start_broker: StartBroker, tmp_path: Path, settings: str, words: str
) -> None:
    site = Site(start_broker, tmp_path, settings=settings)
    one = site.one
    assert one["state"] == "refused"
    assert words in one["problem"]
    assert words in site.broker.log
    site.config.write_text(site.config.read_text().replace(settings, ""))
    site.reload()
    site.wait_for(state="running")
    listener = site.listener("out")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
    assert said(listener, 1) == [["a"]]


def test_two_of_one_name_are_one_too_many(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    site = Site(start_broker, tmp_path, more=f'[[processor]]\nfile = "{path}"\ntopic = "else/+"')
    states = sorted(one["state"] for one in site.processors)
    assert states == ["refused", "running"]
    assert "another processor is called echo" in site.broker.log


# Over changes and restarts


def test_a_file_that_changes_is_loaded_again_with_its_spools(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path)
    listener = site.listener("out", "new")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
        assert said(listener, 1) == [["a"]]
        pid = site.one["pid"]
        site.reload()
        assert site.one["pid"] == pid  # nothing has changed
        site.file.write_text(ECHO.replace('output="out"', 'output="new"').replace("spool=3", "spool=2"))
        site.reload()
        site.wait_for(state="running", output="new")
        device.publish("in/1", b"b", 1)
        device.publish("in/1", b"c", 1)
        assert said(listener, 2) == [["a", "b"], ["b", "c"]]
        site.file.write_text("broken(")
        site.reload()
        site.wait_for(state="refused")
        assert device.publish("in/1", b"d", 1) == 0x10  # nobody takes it
        site.file.write_text(ECHO)
        site.reload()
        site.wait_for(state="running")
        device.publish("in/1", b"e", 1)
        assert said(listener, 1) == [["b", "c", "e"]]
        site.config.write_text("[admin]\nport = 0\n")
        site.reload()
        assert site.processors == []
        assert device.publish("in/1", b"f", 1) == 0x10


def test_room_for_so_many_topics(start_broker: StartBroker, tmp_path: Path) -> None:
    more = "[processing]\nstorage_bytes_max = 1000\n"
    site = Site(start_broker, tmp_path, more=more)
    errors = site.listener("$processor/+/errors")
    with opened(site.broker, "device") as device:
        for number in range(10):
            device.publish(f"in/{number}", b"x" * 20, 1)
    found = said(errors, site.wait_for(queue=0)["topics"]["no room"])
    assert {one["what"] for one in found} == {"room"}
    assert "not logged" in found[0]["message"]
    answer: dict[str, Any] = site.get("/processing")
    assert 0 < answer["storage"]["used"] <= 1000
    assert answer["local_share"] < 1
    assert [one["place"] for one in site.get("/processing/topics?topic=in/0")["topics"]] == ["edge"]
