"""What a crash or a bad disk leaves of a log: unfinished tails are cut, and damage costs no more than it has to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from braidmq.log.errors import LogError
from braidmq.log.index import ENTRY_BYTES, IndexEntry, entry_bytes, read_entries
from braidmq.log.log import Log
from braidmq.log.offsets import RESERVE
from braidmq.log.reader import LogReader
from tests.log.rows import crashed_copy, numbers_in, write


def test_the_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    """Whatever was written of the last commit, the rows before it are there, and it goes on."""
    log = Log(tmp_path / "log", "b", partitions=1)
    write(log, 0, 1)
    write(log, 2)
    part = tmp_path / "log" / "partition-000"
    before = {path.name: path.stat().st_size for path in part.iterdir()}
    offsets = (tmp_path / "log" / "offsets").read_bytes()
    write(log, 3)
    after = {path.name: path.read_bytes() for path in part.iterdir()}
    data_name, index_name = sorted(after)
    cases = [(cut, 0) for cut in range(before[data_name], len(after[data_name]), 97)]
    cases += [(len(after[data_name]), cut) for cut in range(before[index_name], len(after[index_name]) + 1, 4)]
    for data_size, index_size in cases:
        folder = crashed_copy(tmp_path / "log", tmp_path / "crashed")
        (folder / "offsets").write_bytes(offsets)
        (folder / "partition-000" / data_name).write_bytes(after[data_name][:data_size])
        kept = max(index_size, before[index_name])
        (folder / "partition-000" / index_name).write_bytes(after[index_name][:kept])
        again = Log(folder, "b", partitions=1)
        assert numbers_in(folder) == [0, 1, 2]
        write(again, 4)
        again.close()
        assert numbers_in(folder) == [0, 1, 2, 4]
        shutil.rmtree(folder)
    log.close()


def test_a_torn_batch_below_the_watermark_is_cut_too(tmp_path: Path) -> None:
    """As after a power cut that kept the index and lost the end of the data."""
    log = Log(tmp_path / "log", "b", partitions=1)
    for number in range(3):
        write(log, number)
    folder = crashed_copy(tmp_path / "log", tmp_path / "crashed")
    (data,) = folder.glob("*/*.arrow")
    content = data.read_bytes()
    data.write_bytes(content[:-100] + bytes(100))
    again = Log(folder, "b", partitions=1)
    assert again.cut_bytes > 0
    write(again, 9)
    assert numbers_in(folder) == [0, 1, 9]
    again.close()
    log.close()


def test_damaged_offsets_are_made_anew(tmp_path: Path) -> None:
    log = Log(tmp_path, "b")
    write(log, 0, 1, 2)
    log.close()
    (tmp_path / "offsets").write_bytes(b"nonsense" * 5)
    with pytest.raises(LogError, match="damaged"):
        LogReader(tmp_path).state()
    log = Log(tmp_path, "b")
    assert log.next_offset > RESERVE
    write(log, 3)
    assert numbers_in(tmp_path) == [0, 1, 2, 3]
    log.close()


@pytest.mark.parametrize("position", range(3))
def test_damage_in_the_middle_costs_one_batch(tmp_path: Path, position: int, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path, "b", partitions=1)
    sizes = []
    for number in range(3):
        write(log, 2 * number, 2 * number + 1)
        sizes.append(log.bytes)
    write(log, 6)
    log.close()
    (data,) = tmp_path.glob("*/*.arrow")
    content = bytearray(data.read_bytes())
    middle = content.index(b"payload %d" % (2 * position))
    content[middle] ^= 1
    data.write_bytes(content)
    reader = LogReader(tmp_path)
    assert numbers_in(reader) == [number for number in range(7) if number // 2 != position]
    assert (reader.damaged_batches, reader.damaged_rows) == (1, 2)
    assert f"offsets {2 * position} to {2 * position + 1} (2 rows" in caplog.text
    again = Log(tmp_path, "b", partitions=1)
    write(again, 7)
    assert numbers_in(reader)[-2:] == [6, 7]
    again.close()


def test_a_batch_that_cannot_be_decoded_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its bytes are as they were written, and yet no batch: as from another hand."""
    log = Log(tmp_path, "b", partitions=1)
    for number in range(4):
        write(log, number)
    log.close()
    (data,), (index,) = tmp_path.glob("*/*.arrow"), tmp_path.glob("*/*.index")
    entry = IndexEntry._make(read_entries(index).tolist()[1])
    content, entries = bytearray(data.read_bytes()), bytearray(index.read_bytes())
    content[entry.position : entry.position + entry.length] = bytes(entry.length)
    entries[ENTRY_BYTES : 2 * ENTRY_BYTES] = entry_bytes(1, 1, entry.position, entry.time, bytes(entry.length), 1)
    data.write_bytes(content)
    index.write_bytes(entries)
    reader = LogReader(tmp_path)
    assert numbers_in(reader) == [0, 2, 3]
    assert (reader.damaged_batches, reader.damaged_rows) == (1, 1)
    assert "offsets 1 to 1 (1 rows" in caplog.text


def test_a_damaged_index_entry_costs_its_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path, "b", partitions=1)
    for number in range(4):
        write(log, number)
    log.close()
    (index,) = tmp_path.glob("*/*.index")
    content = bytearray(index.read_bytes())
    content[48 + 20] ^= 0x10
    index.write_bytes(content)
    reader = LogReader(tmp_path)
    assert numbers_in(reader) == [0, 2, 3]
    assert reader.damaged_batches == 1
    assert "entry 1 is damaged" in caplog.text


def test_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="has no log in it"):
        LogReader(tmp_path)
    log = Log(tmp_path / "log", "b", partitions=4)
    with pytest.raises(LogError, match="in use by another broker"):
        Log(tmp_path / "log", "b", partitions=4)
    with pytest.raises(ValueError, match="no partition 4"):
        next(LogReader(tmp_path / "log").read(4, 0, 1))
    with pytest.raises(ValueError, match="'a/#/b' is no topic filter"):
        next(LogReader(tmp_path / "log").read(0, 0, 1, ["a/#/b"]))
    log.close()
    with pytest.raises(LogError, match=r"has 4 partitions and not 8; set log\.partitions = 4"):
        Log(tmp_path / "log", "b")
    (tmp_path / "log" / "log.json").write_text('{"format": 99}')
    with pytest.raises(LogError, match="another version"):
        LogReader(tmp_path / "log")
    (tmp_path / "log" / "log.json").write_text("{")
    with pytest.raises(LogError, match="is damaged"):
        Log(tmp_path / "log", "b", partitions=4)
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be used"):
        Log(tmp_path / "file", "b")


def test_a_full_disk_takes_nothing_half(tmp_path: Path) -> None:
    """The limit on the size of files stands in for the disk: the write fails halfway."""
    import resource
    import signal

    log = Log(tmp_path, "b", partitions=1)
    write(log, 0)
    (data,) = tmp_path.glob("*/*.arrow")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (data.stat().st_size + 300, hard))
    try:
        with pytest.raises(LogError, match="cannot be written"):
            write(log, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert numbers_in(tmp_path) == [0]
    write(log, 1, 2)
    assert numbers_in(tmp_path) == [0, 1, 2]
    log.close()
    again = Log(tmp_path, "b", partitions=1)
    assert again.cut_bytes == 0
    again.close()
