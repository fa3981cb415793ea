"""A store that cannot be used: said clearly at the start, survived while running, and nothing acknowledged is lost.

The full disk is real: a file system of a few megabytes where the tests may mount one, and everywhere a limit on the
size of the broker's files, which the system enforces in the same place.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests import raw
from tests.conformance.wire import V3, V5, Type, Will
from tests.raw import Client, opened, persistent, wait_until
from tests.streams import Publisher, Subscriber, finish, wait_for_more

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

SEGMENT = f"journal/{0:020}.segment"
ADMIN = "[admin]\nport = 0\n"
MB = 1024 * 1024


# A store that is no good from the start


def fails_to_start(start: Callable[[], object], exit_codes: tuple[int, ...] = (3,)) -> str:
    """Starts what cannot start; returns what it said, once the exit code has been found right."""
    with pytest.raises(RuntimeError) as failure:
        start()
    assert getattr(failure.value, "exit_code", None) in exit_codes, f"{failure.value}"
    text = str(getattr(failure.value, "log", ""))
    assert "Traceback" not in text
    return " ".join(text.split())


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def fill_with(data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(data)

    return change


def flip_bit(path: Path) -> None:
    """In the middle, with whole blocks behind it."""
    at = path.stat().st_size // 2
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1]))


def wipe(path: Path) -> None:
    """Everything between the first bytes and the last."""
    overwrite(path, 1000, b"\xa5" * (path.stat().st_size - 2000))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (fill_with(b"this is not a journal, but it is long enough" * 1000), "damaged"),
    "garbage, and short": (fill_with(b"?"), "damaged"),
    "a bit is wrong": (flip_bit, "damaged"),
    "the middle is overwritten": (wipe, "damaged"),
    "a later version": (lambda path: overwrite(path, 8, b"\x09"), "another version"),
    "its header is damaged": (lambda path: overwrite(path, 20, b"\xa5"), "damaged"),
}


@pytest.fixture(scope="module")
def stored(broker: Broker) -> bytes:
    """A store with something in every table, as it lies on the disk."""
    with Client(broker, "stored", will=Will("w", b"x"), **persistent(V5)) as reader:
        reader.subscribe("stored")
        with opened(broker, "writer", **persistent(V5)) as writer:
            writer.publish_many("stored", [b"x" * 500] * 100, 1)
            writer.publish("stored/kept", b"x", 1, retain=True)
            writer.send(writer.packet("stored", b"x", 2, 1000))
            writer.find(Type.PUBREC, 1000)
            return (broker.data / SEGMENT).read_bytes()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_told_and_left_alone(
    start_broker: StartBroker, tmp_path: Path, stored: bytes, damage: str
) -> None:
    path = tmp_path / SEGMENT
    path.parent.mkdir()
    path.write_bytes(stored)
    do_damage, words = DAMAGES[damage]
    do_damage(path)
    damaged = path.read_bytes()
    assert damaged != stored
    told = fails_to_start(lambda: start_broker(data=tmp_path))
    assert str(path) in told
    assert words in told
    assert "check the folder" not in told
    assert path.read_bytes() == damaged


def test_what_a_crash_left_unfinished_is_cut_off(start_broker: StartBroker, tmp_path: Path, stored: bytes) -> None:
    path = tmp_path / SEGMENT
    path.parent.mkdir()
    path.write_bytes(stored + stored[-300:-7])
    broker = start_broker(data=tmp_path)
    assert "293 bytes that a crash left unfinished are cut off" in broker.log
    with Client(broker, "stored", **persistent(V5)) as reader:
        assert len(reader.messages(101)) == 101


def test_a_file_that_was_put_back_is_used(start_broker: StartBroker, tmp_path: Path, stored: bytes) -> None:
    path = tmp_path / SEGMENT
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    fails_to_start(lambda: start_broker(data=tmp_path))
    path.write_bytes(stored)
    broker = start_broker(data=tmp_path)
    with Client(broker, "stored", **persistent(V5)) as reader:
        assert len(reader.messages(101)) == 101
        assert reader.so_far() == []


def test_a_folder_in_use_is_told(start_broker: StartBroker) -> None:
    broker = start_broker()
    told = fails_to_start(lambda: start_broker(data=broker.data))
    assert str(broker.data) in told
    assert "in use by another broker" in told
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t", 1)
    with opened(broker) as writer:
        assert writer.publish("t", b"x", 1) == 0
    broker.kill9()
    other = start_broker(data=broker.data)  # free again, though nobody has cleaned up
    with Client(other, "reader", **persistent(V5)) as reader:
        assert reader.next_message().payload == b"x"


def test_a_folder_that_cannot_be_is_told(start_broker: StartBroker, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    for data in (in_the_way, in_the_way / "below"):
        assert str(data) in fails_to_start(partial(start_broker, data=data), exit_codes=(2, 3))
    assert in_the_way.read_text() == "not a folder"
    data = tmp_path / "data"
    data.mkdir()
    (data / "journal").write_text("not a folder")
    assert str(data / "journal") in fails_to_start(lambda: start_broker(data=data))
    (data / "journal").unlink()
    (data / "braidmq.sqlite").mkdir()
    assert str(data / "braidmq.sqlite") in fails_to_start(lambda: start_broker(data=data))


def test_without_the_store_nothing_is_written(start_broker: StartBroker) -> None:
    broker = start_broker("[store]\nenabled = false\n")
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t")
    with opened(broker) as writer:
        assert writer.publish("t", b"x", 1) == 0
    with Client(broker, "reader", **persistent(V5)) as reader:
        assert reader.next_message().payload == b"x"
    broker.restart()
    with Client(broker, "reader", **persistent(V5)) as reader:
        assert not reader.present
    assert not broker.data.exists()


# A disk that is full while the broker runs


class Disk(Protocol):
    """Where a broker's store is; it can be filled up to the last byte and emptied again."""

    data: Path | None

    def fill(self, broker: Broker) -> None: ...
    def make_room(self, broker: Broker) -> None: ...


class SizeLimit:
    """The system refuses every write that would make the journal longer than it is (RLIMIT_FSIZE)."""

    data: Path | None = None
    LOG_BYTES = 65_536
    """What the broker's own messages may take up: they are written under the same limit."""

    def fill(self, broker: Broker) -> None:
        log = broker.data / SEGMENT
        with opened(broker, "filler", **persistent(V5, expiry_s=3600)) as filler:
            while log.stat().st_size < self.LOG_BYTES:
                filler.subscribe(f"filler/{time.monotonic()}")
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))

    def make_room(self, broker: Broker) -> None:
        if broker.running:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class SmallFileSystem:
    """A file system in memory, filled by a file beside the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data: Path | None = folder / "data"
        self.filler = folder / "filler"

    def fill(self, broker: Broker) -> None:
        self.fill_up()

    def fill_up(self) -> None:
        with self.filler.open("wb", buffering=0) as file:
            for block in (65_536, 4096, 512, 1):
                try:
                    while file.write(b"\0" * block):
                        pass
                except OSError:
                    continue

    def make_room(self, broker: Broker) -> None:
        self.filler.unlink(missing_ok=True)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[SmallFileSystem]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    yield SmallFileSystem(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(params=["size limit", "small file system"])
def disk(request: pytest.FixtureRequest) -> Disk:
    if request.param == "size limit":
        return SizeLimit()
    found: SmallFileSystem = request.getfixturevalue("small_file_system")
    return found


def test_a_disk_that_is_full_at_the_start_is_told(
    start_broker: StartBroker, small_file_system: SmallFileSystem
) -> None:
    small_file_system.fill_up()
    told = fails_to_start(lambda: start_broker(data=small_file_system.data))
    assert str(small_file_system.data) in told
    assert "full" in told or "No space left" in told


def fill_until_noticed(broker: Broker, disk: Disk) -> list[bytes]:
    """Fills the disk and publishes until the broker has noticed; returns what it acknowledged meanwhile."""
    disk.fill(broker)
    acknowledged: list[bytes] = []
    try:
        with Client(broker, "prober") as prober:
            for number in range(1000):
                payload = b"probe %d" % number
                if prober.publish("t", payload, 1) >= 0x80:
                    break
                acknowledged.append(payload)
            else:
                pytest.fail("a full disk takes a thousand messages")
    except ConnectionError:
        pass  # closed without an acknowledgement, which says the same
    broker.wait_for_log("until it can be written again")
    return acknowledged


def test_a_full_disk_refuses_and_recovers(start_broker: StartBroker, disk: Disk) -> None:
    broker = start_broker(ADMIN, data=disk.data)
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t")
    live = Client(broker, "live", V3)
    live.subscribe("live/#", 0)
    with opened(broker, "writer") as writer:
        writer.publish_many("t", [b"before"], 1)
    assert raw.readiness(broker)[0] == 200

    acknowledged = [b"before", *fill_until_noticed(broker, disk)]
    status, answer = raw.readiness(broker)
    assert status == 503
    assert "store" in answer["reasons"]
    # Clients that ask for nothing that must be kept do not notice.
    with opened(broker, "newcomer", V5) as newcomer, opened(broker, "old newcomer", V3) as old:
        for number in range(100):
            newcomer.publish("live/5", b"%d" % number)
            old.publish("live/3", b"%d" % number)
        got = live.messages(200)
        for topic in ("live/5", "live/3"):
            assert [int(one.payload) for one in got if one.topic == topic] == list(range(100))
        newcomer.subscribe("echo", 0)
        newcomer.publish("echo", b"1")
        assert newcomer.next_message().payload == b"1"
    # Those that do are told so, where their version has words for it.
    with Client(broker, "five", V5) as five:
        assert five.accepted
        assert five.publish("t", b"refused", 1) == 0x97
        assert five.publish("t", b"refused", 2) == 0x97
        assert five.so_far() == []  # and stay
    with Client(broker, "three", V3) as three:
        three.send(three.packet("t", b"refused", 1, 1))
        assert three.receive() is None
    with Client(broker, "lasting", V5, **persistent(V5)) as lasting:
        assert lasting.connack.reason == 0x88
    with Client(broker, "lasting", V3, **persistent(V3)) as lasting:
        assert lasting.connack.reason == 3
    assert broker.log.count("until it can be written again") == 1, "it complains again and again"

    disk.make_room(broker)
    wait_until(lambda: raw.readiness(broker)[0] == 200, "ready again")
    assert "the store can be written again" in broker.log
    with opened(broker, "writer", V5) as writer:
        writer.publish_many("t", [b"after"], 2)
    assert "Traceback" not in broker.log
    broker.kill9()
    broker.start()
    with Client(broker, "reader", **persistent(V5)) as reader:
        got = [reader.next_message()]
        while got[-1].payload != b"after":
            got.append(reader.next_message())
        assert reader.so_far() == []
    payloads = [one.payload for one in got]
    assert [one for one in payloads if one in acknowledged or one == b"after"] == [*acknowledged, b"after"]
    assert b"refused" not in payloads


def test_a_broker_that_dies_on_a_full_disk_has_lost_nothing(start_broker: StartBroker, disk: Disk) -> None:
    broker = start_broker(data=disk.data)
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t")
    with opened(broker, "writer") as writer:
        writer.publish_many("t", [b"%d" % number for number in range(20)], 2)
        writer.publish("kept", b"x", 1, retain=True)
    acknowledged = fill_until_noticed(broker, disk)
    broker.terminate()
    assert "Traceback" not in broker.log
    disk.make_room(broker)
    broker.start()
    with Client(broker, "reader", **persistent(V5)) as reader:
        got = [message.payload for message in reader.messages(20 + len(acknowledged))]
        assert got == [b"%d" % number for number in range(20)] + acknowledged
        reader.subscribe("kept")
        kept = reader.so_far()
        assert b"x" in [message.payload for message in kept]


@pytest.mark.parametrize("killed", [False, True], ids=["recovers", "killed while full"])
def test_once_and_only_once_over_a_full_disk(start_broker: StartBroker, disk: Disk, killed: bool) -> None:
    """QoS 2 in both directions: what a subscriber has been given while the disk was full must not come again."""
    broker = start_broker(ADMIN, data=disk.data)
    subscriber = Subscriber(broker, "subscriber", 2)
    subscriber.start()
    assert subscriber.subscribed.wait(20)
    publishers = [Publisher(broker, f"publisher-{number}", 2) for number in range(2)]
    for publisher in publishers:
        publisher.start()
    wait_for_more(subscriber, publishers, 100)
    disk.fill(broker)
    broker.wait_for_log("until it can be written again")
    if killed:
        broker.kill9()
        disk.make_room(broker)
        broker.start()
    else:
        disk.make_room(broker)
        wait_until(lambda: raw.readiness(broker)[0] == 200, "ready again")
    wait_for_more(subscriber, publishers, 100)
    finish(subscriber, publishers)
    for publisher in publishers:
        assert sorted(subscriber.got[publisher.topic]) == publisher.numbers


def test_memory_is_bounded_while_the_disk_is_full(start_broker: StartBroker) -> None:
    """What waits for the disk must not pile up, though some of it needs no acknowledgement and keeps coming."""
    disk = SizeLimit()
    broker = start_broker(ADMIN)
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t")
    with opened(broker, "writer") as writer:
        writer.publish("kept", b"x" * 10_000, 1, retain=True)
    fill_until_noticed(broker, disk)
    with opened(broker, "writer") as writer:
        before = raw.rss_bytes(broker)
        publication = writer.packet("kept", b"y" * 10_000, retain=True)
        for _ in range(60):
            writer.send(publication * 100)
            writer.so_far()
        grown = raw.rss_bytes(broker) - before
    assert grown < 24 * MB, f"60 MB for one topic left {grown / MB:.0f} MB behind"
    for number in range(300):
        with Client(broker, f"visitor-{number}", will=Will("kept", b"z" * 50_000, retain=True)) as visitor:
            assert visitor.accepted
    grown = raw.rss_bytes(broker) - before
    assert grown < 24 * MB, f"visitors and their wills left {grown / MB:.0f} MB behind"
    disk.make_room(broker)
    wait_until(lambda: raw.readiness(broker)[0] == 200, "ready again")
    broker.kill9()
    broker.start()
    with opened(broker) as reader:
        reader.subscribe("kept")
        assert reader.next_message().payload[:1] in (b"x", b"y", b"z")
