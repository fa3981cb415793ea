"""Topics that go to Spark and come back, at a real broker with a real log; the tests do what Spark is to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from braidmq.processors import Message, Processor, Spool, SpoolState, spool_step
from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Output
from tests.conformance.wire import V5
from tests.processors.site import HEAD, Site, said
from tests.raw import TIMEOUT_S, Client, opened, persistent, wait_until

pytest.importorskip("pyarrow", reason="a log needs the extra `log`")

from braidmq.cli.process.local_run import _logged

if TYPE_CHECKING:
    from tests.conftest import StartBroker

DIGEST = (
    HEAD
    + """
@processor(topic="in/+", spool=3, output="out")
def digest(spool, message):
    return Notification([message.offset, [one.payload.decode() for one in spool]])
"""
)
LOG = '[log]\ntopics = ["in/#"]\n'


class Spark:
    """What a query on Spark does with the topics that are its own: reads the log, keeps spools, returns topics."""

    def __init__(self, site: Site, topic: str) -> None:
        self.site = site
        self.topic = topic
        self.processor: Processor = load_processor(str(site.file))
        self.query = f"processor=digest&topic={topic}"
        place = self.place
        assert place["place"] in ("spark", "returning")
        self.at: int = place["turns"][-1][0]
        with urlopen(f"{site.broker.address('http')}/processing/state?{self.query}", timeout=TIMEOUT_S) as response:
            self.spool = Spool(self.processor.spool, SpoolState.decode(response.read()))

    @property
    def place(self) -> dict[str, Any]:
        [found] = self.site.get(f"/processing/topics?{self.query}")["topics"]
        return dict(found)

    def work(self) -> list[Any]:
        """Processes what is in the log, up to where the topic is asked back; what comes of it."""
        until = self.place["returns_at"]
        answers = []
        for message in logged(self.site, self.topic):
            if message.offset >= self.at and (until is None or message.offset < until):
                output = spool_step(self.processor, self.spool, message)
                self.at = message.offset + 1
                answers += [json.loads(output.payload)] if isinstance(output, Output) else []
        return answers

    def give_back(self, first: int | None = None) -> tuple[int, Any]:
        at = self.place["returns_at"] if first is None else first
        path = f"/processing/state?{self.query}&first={at}"
        return self.site.post(path, self.spool.state.encode(), "application/msgpack")


def logged(site: Site, topic: str) -> Iterator[Message]:
    return _logged(str(site.broker.data / "log"), None, topic)


def move(site: Site, topic: str, place: str) -> tuple[int, Any]:
    body = {"processor": "digest", "topic": topic, "place": place}
    return site.post("/processing/move", json.dumps(body).encode())


def publish(site: Site, topic: str, *payloads: str, qos: int = 1) -> None:
    with opened(site.broker, "device") as device:
        for payload in payloads:
            device.publish(topic, payload.encode(), qos)
        device.so_far()


def alone(site: Site, topic: str, count: int) -> list[Any]:
    """What the processor gives over the whole log of a topic, in one place, once so many messages are written."""
    wait_until(lambda: len(list(logged(site, topic))) >= count, f"{count} rows of {topic}")
    processor, spool = load_processor(str(site.file)), Spool(3)
    outputs = [spool_step(processor, spool, message) for message in logged(site, topic)]
    return [json.loads(output.payload) for output in outputs if isinstance(output, Output)]


def test_there_and_back(start_broker: StartBroker, tmp_path: Path) -> None:
    """A message has the log's offset at the edge and on Spark, and its answer comes from one place alone."""
    site = Site(start_broker, tmp_path, DIGEST, more=LOG)
    listener = site.listener("out")
    publish(site, "in/1", "a", "b", qos=0)
    publish(site, "in/2", "x")
    publish(site, "in/1", "c", "d")
    answers = [one for one in said(listener, 5) if one[1][-1] != "x"]

    status, place = move(site, "in/1", "spark")
    assert (status, place["place"], place["turns"]) == (200, "spark", [[0, "edge"], [5, "spark"]])
    publish(site, "in/1", "e", "f")
    wait_until(lambda: len(list(logged(site, "in/1"))) == 6, "all rows are written")
    spark = Spark(site, "in/1")
    answers += spark.work()
    assert answers[-1] == [6, ["d", "e", "f"]]
    publish(site, "in/1", "g")

    status, place = move(site, "in/1", "edge")
    assert (status, place["place"], place["returns_at"]) == (200, "returning", 8)
    publish(site, "in/1", "h", "i")  # these wait
    assert spark.give_back(9)[0] == 409
    answers += spark.work()
    status, place = spark.give_back()
    assert (status, place["place"]) == (200, "edge")
    assert spark.give_back(8)[0] == 409  # once
    answers += said(listener, 2)
    publish(site, "in/1", "j")
    answers += said(listener, 1)
    assert answers == alone(site, "in/1", 10)
    assert site.one["delegated"] == 3
    assert listener.so_far() == []


def test_whose_turn_it_is_survives_a_crash(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, DIGEST, more=LOG)
    listener = site.listener("out")
    publish(site, "in/1", "a", "b")
    answers = said(listener, 2)
    assert move(site, "in/1", "spark")[0] == 200
    publish(site, "in/1", "c")
    assert move(site, "in/1", "edge")[1]["place"] == "returning"
    publish(site, "in/1", "d")
    site.broker.kill9()  # before Spark has answered: it is Spark's as before, and what was held is in the log
    site.broker.start()
    listener = site.listener("out")
    spark = Spark(site, "in/1")
    assert spark.place["place"] == "spark"
    answers += spark.work()
    assert spark.give_back(4)[0] == 409
    assert move(site, "in/1", "edge")[1]["place"] == "returning"  # nothing of it has come since the start
    answers += spark.work()
    assert spark.give_back()[0] == 200
    publish(site, "in/1", "e")
    answers += said(listener, 1)
    assert answers == alone(site, "in/1", 5)


def test_what_has_no_room_is_delegated_from_its_first_message_on(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, DIGEST, more=LOG + "[processing]\nstorage_bytes_max = 500\n")
    listener = site.listener("out")
    for number in range(6):
        publish(site, f"in/{number}", "a", "b")
    places = {one["topic"]: one["place"] for one in site.get("/processing/topics")["topics"]}
    edge = [topic for topic, place in places.items() if place == "edge"]
    assert set(places.values()) == {"edge", "spark"}
    said(listener, 2 * len(edge))
    assert listener.so_far() == []
    for topic in set(places) - set(edge):
        expected = alone(site, topic, 2)
        assert Spark(site, topic).work() == expected
    assert site.get("/processing")["local_share"] < 1


def test_bad_requests_change_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, DIGEST, more=LOG)
    publish(site, "in/1", "a")
    good = b'{"processor": "digest", "topic": "in/1", "place": "spark"}'
    for body, content_type, status in (
        (good, "text/plain", 415),
        (b"{", "application/json", 400),
        (b'{"processor": "digest"}', "application/json", 400),
        (good.replace(b"spark", b"moon"), "application/json", 409),
        (good.replace(b"digest", b"nobody"), "application/json", 409),
        (good.replace(b"in/1", b"in/2"), "application/json", 409),
        (b" " * 300_000 + good, "application/json", 400),
    ):
        code, answer = site.post("/processing/move", body, content_type)
        assert code == status, answer
        assert answer["error"]
    state = "/processing/state?processor=digest&topic=in/1"
    for path, body, content_type, status in (
        (state + "&first=1", b"x", "text/plain", 415),
        (state, b"x", "application/msgpack", 400),
        (state + "&first=x", b"x", "application/msgpack", 400),
        (state + "&first=1", b"\xc1", "application/msgpack", 400),
        (state + "&first=1", SpoolState(0, ()).encode(), "application/msgpack", 409),
        ("/processing/state?first=1", b"x", "application/msgpack", 409),
    ):
        code, answer = site.post(path, body, content_type)
        assert code == status, answer
    [place] = site.get("/processing/topics")["topics"]
    assert place["turns"] == [[0, "edge"]]


def test_what_waited_when_the_topic_went_to_spark_is_still_the_edges(start_broker: StartBroker, tmp_path: Path) -> None:
    """Also if the broker ends before it is done."""
    gate = tmp_path / "gate"
    waiting = f"    while message.payload == b'wait' and not os.path.exists({str(gate)!r}):\n        time.sleep(0.01)\n"
    text = DIGEST.replace("    return", f"{waiting}    return")
    site = Site(start_broker, tmp_path, text, settings="time_limit_s = 600", more=LOG)
    with Client(site.broker, "listener", **persistent(V5)) as listener:
        listener.subscribe("out", 1)
        publish(site, "in/1", "a", "wait", "b")
        answers = said(listener, 1)
    assert move(site, "in/1", "spark")[1]["turns"][-1] == [3, "spark"]
    publish(site, "in/1", "c")
    status, answer = move(site, "in/1", "edge")
    assert (status, "still wait here" in answer["error"]) == (409, True)
    assert site.broker.terminate() == 0
    gate.touch()
    site.broker.start()
    with Client(site.broker, "listener", **persistent(V5)) as listener:
        answers += said(listener, 2)
    expected = alone(site, "in/1", 4)
    answers += Spark(site, "in/1").work()
    assert answers == expected
