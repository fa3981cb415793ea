"""Processors in a braid: beside the publishers by default, or for all of them at one broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.processors.site import HEAD, Site, said
from tests.raw import Client, opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

TELL = (
    HEAD
    + """
@processor(topic="in/+", spool=9, output="out")
def tell(spool, message):
    return Notification([[one.payload.decode(), one.origin] for one in spool])
"""
)


def braided(start: StartBroker, folder: Path, settings: str) -> tuple[Site, Broker]:
    """A broker with a processor, and another one without."""
    site = Site(start, folder, TELL, settings, more='[braid]\nlisten = "127.0.0.1:0"\nname = "first"')
    address = site.broker.address("braid").removeprefix("braid://")
    other = start(arguments=["--join", address, "--braid", "127.0.0.1:0", "--set", "braid.name=second"])
    wait_until(lambda: len(site.get("/braid/ring")["brokers"]) == 2, "both are in the braid")
    return site, other


def test_beside_the_publishers(start_broker: StartBroker, tmp_path: Path) -> None:
    """What is published elsewhere is not brought here for it; what it says goes everywhere."""
    site, other = braided(start_broker, tmp_path, "")
    with opened(other, "elsewhere") as elsewhere, opened(site.broker, "here") as here:
        elsewhere.subscribe("out", 1)
        here.subscribe("in/+", 1)  # it comes here, for a client: that is not the processor's either
        elsewhere.publish("in/1", b"there", 1)
        assert here.next_message().payload == b"there"
        here.unsubscribe("in/+")
        assert here.publish("in/1", b"a", 1) == 0
        assert said(elsewhere, 1) == [[["a", "first"]]]
        assert site.one["processed"] == 1
        wait_until(lambda: elsewhere.publish("in/2", b"b", 1) == 0x10, "it is known that nobody there takes it")
        here.subscribe("$demand/in/2")
        assert here.next_message().payload == b"1"


def test_all_that_is_published_in_the_braid(start_broker: StartBroker, tmp_path: Path) -> None:
    site, other = braided(start_broker, tmp_path, 'where = "here"')
    with opened(other, "elsewhere") as elsewhere, opened(site.broker, "here") as here:
        here.subscribe("out", 1)
        wait_until(lambda: elsewhere.publish("in/1", b"a", 1) == 0, "the other broker knows who wants it")
        first = said(here, 1)[0]
        assert first[-1] == ["a", ""]
        elsewhere.publish("in/1", b"b")
        assert said(here, 1)[0] == [*first, ["b", ""]]
        here.publish("in/1", b"c", 1)
        assert said(here, 1)[0] == [*first, ["b", ""], ["c", "first"]]
        _end(site, elsewhere)


def _end(site: Site, elsewhere: Client) -> None:
    """Without the processor nobody wants it any more."""
    site.config.write_text(site.config.read_text().partition("[[processor]]")[0])
    site.reload()
    wait_until(lambda: elsewhere.publish("in/1", b"d", 1) == 0x10, "the other broker knows that nobody wants it")
