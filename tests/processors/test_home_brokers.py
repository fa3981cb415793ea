"""Three brokers with the same processor, and publishers of one topic at two of them: with real workers and sockets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processors.site import HEAD, Site, said
from tests.raw import metrics, opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker

TELL = (
    HEAD
    + """
@processor(topic="in/+", spool=40, output="out")
def tell(spool, message):
    return Notification([message.origin, *[one.payload.decode() for one in spool]])
"""
)


def braid(start: StartBroker, folder: Path, count: int) -> list[Site]:
    sites: list[Site] = []
    for number in range(count):
        home = folder / f"site{number}"
        home.mkdir()
        join = f'join = ["{sites[0].broker.address("braid").removeprefix("braid://")}"]' if sites else ""
        more = f'[braid]\nlisten = "127.0.0.1:0"\nname = "site{number}"\n{join}'
        sites.append(Site(start, home, TELL, more=more))
    wait_until(lambda: all(len(one.get("/braid/ring")["brokers"]) == count for one in sites), "all are in the braid")
    return sites


def test_each_message_is_processed_once_over_the_messages_of_both(start_broker: StartBroker, tmp_path: Path) -> None:
    first, second, third = braid(start_broker, tmp_path, 3)
    with (
        opened(first.broker, "one") as one,
        opened(second.broker, "other") as other,
        opened(third.broker, "listener") as listener,
    ):
        listener.subscribe("out", 1)
        one.publish("in/1", b"a", 1)
        assert said(listener, 1) == [["site0", "a"]]
        other.publish("in/1", b"b", 1)
        assert said(listener, 1) == [["site1", "a", "b"]], "a new home has the spool before its first message"
        first.wait_for(copies_in=1)
        one.publish("in/1", b"c", 0)
        assert said(listener, 1) == [["site0", "a", "b", "c"]]
        second.wait_for(copies_in=1)
        other.publish("in/1", b"d", 2)
        assert said(listener, 1) == [["site1", "a", "b", "c", "d"]]
        first.wait_for(copies_in=2, processed=2, homes=1, copies_out=1)
        second.broker.kill9()
        one.publish("in/1", b"e", 1)
        one.publish("in/1", b"f", 1)
        assert said(listener, 2) == [["site0", *"abcde"], ["site0", *"abcdef"]]
        second.broker.start()
        wait_until(lambda: second.broker.log.count("is in the braid") == 2, "it is there again")
        with opened(second.broker, "other") as again:
            texts = ["site1", *"abcdef"]
            found: list[str] = []
            while len(found) < len(texts):  # what it missed comes later if it takes more than a second
                again.publish("in/1", b"g", 1)
                texts.append("g")
                found = said(listener, 1)[0]
                assert len(texts) < 40, found
                time.sleep(0.2)
            assert found == texts
    assert third.one["processed"] == third.one["copies_in"] == third.one["homes"] == 0
    assert first.one["processed"] == 4
    assert second.one["processed"] == texts.count("g")
    assert metrics(first.broker)["processor_copies_out_total"] == first.one["copies_out"] >= 3
    assert metrics(first.broker)["processor_homes"] == 1
    listed = first.get("/braid/topics")
    shown = [one["topic"] for one in listed["published"]] + [one["filter"] for one in listed["interest"]]
    assert "in/1" in shown
    assert not [one for one in shown if one.startswith("$spool")], "no matter of people, unless they ask for it"
    topics = first.get("/processing/topics")["topics"]
    assert [(topic["topic"], topic["is_home"]) for topic in topics] == [("in/1", True)]
