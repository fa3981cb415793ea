"""What processors have seen over the end of a broker: saved by a clean one, made from the log after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.processors.site import ECHO, HEAD, Site, said
from tests.raw import opened

if TYPE_CHECKING:
    from tests.conftest import StartBroker


def test_spools_and_what_waits_survive_a_clean_end(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, settings="time_limit_s = 600")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
        device.publish("in/1", b"b", 1)
        site.wait_for(processed=2)
        device.publish("in/2", b"loop", 1)
        device.publish("in/1", b"c", 1)
        device.publish("in/1", b"d", 1)
    assert site.broker.terminate() == 0
    site.file.write_text(ECHO.replace('"loop"', '"never"'))
    site.broker.start()
    one = site.wait_for(processed=3)
    assert one["notified"] == 3
    with opened(site.broker, "device") as device, site.listener("out") as listener:
        device.publish("in/1", b"e", 1)
        assert said(listener, 1) == [["c", "d", "e"]]


def test_after_a_crash_spools_are_as_the_log_has_them(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, more='[log]\ntopics = ["in/1"]\n')
    with opened(site.broker, "device") as device:
        for payload in (b"a", b"b", b"c", b"d"):
            device.publish("in/1", payload, 1)
        device.publish("in/2", b"not logged", 1)
    site.wait_for(processed=5)
    for _ in range(2):  # once without anything new since the last crash
        site.broker.kill9()
        site.broker.start()
    with opened(site.broker, "device") as device, site.listener("out") as listener:
        device.publish("in/1", b"e", 1)
        device.publish("in/2", b"first", 1)
        assert said(listener, 2) == [["c", "d", "e"], ["first"]]


def test_after_a_crash_offsets_go_on(start_broker: StartBroker, tmp_path: Path) -> None:
    text = (
        HEAD
        + """
@processor(topic="in/+", spool=3, output="out")
def offsets(spool, message):
    return Notification([one.offset for one in spool])
"""
    )
    site = Site(start_broker, tmp_path, text)
    listener = site.listener("out")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
    assert said(listener, 1) == [[0]]
    site.broker.kill9()
    site.broker.start()
    listener = site.listener("out")
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
    [[offset]] = said(listener, 1)
    assert offset > 0
