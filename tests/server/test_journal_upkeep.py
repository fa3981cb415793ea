"""A journal is compacted beside a broker that goes on, by a process that may fail or die without any harm."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from braidmq.journal import journal_writer as journals
from braidmq.journal.contents import read_contents
from braidmq.journal.files import files_of
from braidmq.journal.journal import Journal
from braidmq.journal.operation import DELETE, PUT
from braidmq.server import journal_upkeep
from braidmq.server.journal_upkeep import JournalUpkeep
from tests.conformance.wire import V5
from tests.raw import Client, opened, persistent, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker

ROW = bytes(1000)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A compaction of it is due."""
    monkeypatch.setattr(journals, "COMPACT_BYTES", 100_000)
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 30_000)
    opened = Journal(tmp_path)
    while not opened.is_compaction_due:
        opened.commit([(PUT, 1, 0, opened.sequence, ROW), (DELETE, 1, 0, opened.sequence - 10)])
    return opened


def kept(journal: Journal) -> list[int | str]:
    return list(read_contents(journal.folder).tables.group(1))


async def test_it_is_compacted_while_it_is_written(journal: Journal) -> None:
    upkeep = asyncio.create_task(JournalUpkeep(journal).look())
    while not upkeep.done():
        journal.commit([(PUT, 1, 0, journal.sequence, ROW), (DELETE, 1, 0, journal.sequence - 10)])
        await asyncio.sleep(0.001)
    await upkeep
    assert kept(journal) == list(range(journal.sequence - 10, journal.sequence))
    assert not journal.is_compaction_due or journal.position - journal.snapshot_position > 100_000
    ((position, snapshot),) = files_of(journal.folder, "snapshot")
    assert (position, snapshot.stat().st_size) == (journal.snapshot_position, journal.snapshot_bytes)
    assert files_of(journal.folder, "segment")[0][0] == position
    journal.close()


async def test_what_is_sealed_is_brought_to_the_disk(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACT_BYTES", 1 << 40)
    sealed = journal.unsynced
    assert sealed
    synced: list[Path] = []
    monkeypatch.setattr(journal_upkeep, "sync_file", synced.append)
    for _ in range(2):
        await JournalUpkeep(journal).look()
        assert synced == [*sealed, journal.folder]
    journal.close()


async def test_one_that_fails_says_why_and_loses_nothing(journal: Journal) -> None:
    path = files_of(journal.folder, "segment")[0][1]
    whole = path.read_bytes()
    path.write_bytes(whole[:5000] + b"?" + whole[5001:])
    with pytest.raises(OSError, match="not as it was written"):
        await JournalUpkeep(journal).look()
    path.write_bytes(whole)
    await JournalUpkeep(journal).look()
    assert kept(journal) == list(range(journal.sequence - 10, journal.sequence))
    journal.close()


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["killed", "cancelled"])
async def test_one_that_dies_loses_nothing(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
    start = asyncio.create_subprocess_exec

    async def note(*arguments: str, **options: object) -> asyncio.subprocess.Process:
        started.set_result(await start(*arguments, **options))  # type: ignore[arg-type]
        return started.result()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", note)
    upkeep = asyncio.create_task(JournalUpkeep(journal).look())
    process = await started
    if is_cancelled:
        upkeep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upkeep
    else:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="ended with -9"):
            await upkeep
    assert await process.wait() == -signal.SIGKILL
    assert kept(journal) == list(range(journal.sequence - 10, journal.sequence))
    journal.close()


def test_a_broker_compacts_its_journal_and_survives(start_broker: StartBroker) -> None:
    """A retained message that is replaced again and again takes up the room of a few."""
    broker = start_broker()
    with Client(broker, "reader", **persistent(V5)) as reader:
        reader.subscribe("t")
    with opened(broker, "writer") as writer:
        writer.publish("t", b"waits", 1)
        for number in range(70):
            writer.publish("kept", b"%d." % number + bytes(1_000_000), 1, retain=True)

    def size() -> int:
        return sum(path.stat().st_size for path in (broker.data / "journal").iterdir())

    wait_until(lambda: size() < journals.COMPACT_BYTES / 2, "compacted")
    assert list((broker.data / "journal").glob("*.snapshot"))
    broker.kill9()
    broker.start()
    with Client(broker, "reader", **persistent(V5)) as reader:
        assert reader.next_message().payload == b"waits"
        reader.subscribe("kept")
        assert reader.next_message().payload.startswith(b"69.")
    assert "Traceback" not in broker.log
