"""The log of one broker: appends rows, commits them together, and keeps within its bounds.

Rows get one increasing sequence of offsets over all partitions; a partition, chosen by the topic, holds an increasing
part of it. `append` is a commit: every partition's batch and its index entry are written, then the watermark. Readers
see all of it or nothing, and after a crash what stands above the watermark is cut off.

    log.json           the broker's name, the log's own id, the number of partitions
    offsets            where it begins and ends (see `offsets`)
    partition-000/ …   the segments
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from braidmq.log.commit import Commit, PartitionRows
from braidmq.log.errors import LogError, LogInUseError
from braidmq.log.journal import RowJournal
from braidmq.log.offsets import RESERVE, Offsets, OffsetsFile
from braidmq.log.reader import INFO_NAME, read_info
from braidmq.log.retention import SEGMENTS_BELOW_BOUND, ClosedSegment, segment_bytes_max, surplus
from braidmq.log.rows import BatchMaker
from braidmq.log.run import Run
from braidmq.log.schema import FORMAT, batch_bytes
from braidmq.log.segment import Segment, partition_folder, segment_paths
from braidmq.log.segment_files import closed_segment, remove_segment, tidy
from braidmq.log.write_buffer import NO_MEMORY, BufferContents, WriteBuffer
from braidmq.system.folder_lock import FolderInUse, lock_folder

PARTITIONS: Final = 8
SEGMENT_BYTES: Final = 32 * 1024 * 1024
_UNBOUNDED: Final = 1 << 62

_log = logging.getLogger("braidmq.log")


class Log:
    """One process at a time has the log of a folder open. Threads may share it."""

    def __init__(
        self,
        folder: str | Path,
        broker: str,
        *,
        partitions: int = PARTITIONS,
        segment_bytes: int = SEGMENT_BYTES,
        retain_bytes: int = 0,
        retain_age_s: float = 0.0,
        sync: Literal["normal", "full"] = "normal",
    ) -> None:
        self.folder = Path(folder)
        self.broker = broker
        self.partitions = partitions
        self.segment_bytes = segment_bytes
        self.retain_bytes = retain_bytes
        self.retain_age_s = retain_age_s
        self.rows = 0
        """Written since the start."""
        self.bytes_written = 0
        self.cut_bytes = 0
        """What the last crash had left unfinished."""
        self._sync = sync == "full"
        self._maker = BatchMaker(broker)
        self._safe = 0
        """Below this, offsets are reserved on the disk."""
        self._lock = threading.Lock()
        self._open: dict[int, Segment] = {}
        self.closed: list[ClosedSegment] = []
        self._folder_lock = _locked(self.folder)
        try:
            self.id = self._identify()
            self._offsets = OffsetsFile(self.folder)
            self._journal = RowJournal(self.folder, self._sync)
            self._recover()
        except LogError:
            os.close(self._folder_lock)
            raise
        except OSError as error:
            os.close(self._folder_lock)
            raise self._unusable(error) from error

    # Recovery

    def _identify(self) -> str:
        path = self.folder / INFO_NAME
        if not path.exists():
            made = {"format": FORMAT, "id": secrets.token_hex(8), "broker": self.broker, "partitions": self.partitions}
            self._write_info(made)
        info = read_info(self.folder)
        if info["partitions"] != self.partitions:
            text = f"{self.folder} has {info['partitions']} partitions and not {self.partitions}"
            raise LogError(f"{text}; set log.partitions = {info['partitions']}, or give the log another folder")
        if info["broker"] != self.broker:
            self._write_info(info | {"broker": self.broker})
        return str(info["id"])

    def _write_info(self, info: dict[str, object]) -> None:
        path = self.folder / INFO_NAME
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(info) + "\n")
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)

    def _recover(self) -> None:
        """Cuts unfinished tails off and goes on at an offset that was never used."""
        found = self._offsets.found
        below = _UNBOUNDED if found is None else found.next
        highest = -1
        for partition in range(self.partitions):
            folder = partition_folder(self.folder, partition)
            tidy(folder)
            paths = segment_paths(folder)
            self.closed.extend(closed_segment(path) for path in paths)
            newest = self.closed[-1] if paths else None
            if newest is not None and not newest.is_parquet:
                self.closed.pop()
                segment, cut = Segment.resume(newest.path, below)
                self.cut_bytes += cut
                self._open[partition] = segment
                highest = max(highest, segment.last)
        highest = max([highest, *(one.last for one in self.closed)])
        if self.cut_bytes:
            _log.warning("%s: an unfinished tail of %d bytes was cut off", self.folder, self.cut_bytes)
        if found is None:
            was_used = highest >= 0
            first, following = 0, (highest + 1 + RESERVE if was_used else 0)
            if was_used:
                _log.warning("%s: the offsets were damaged; they go on at %d", self.folder, following)
        else:
            first, following = found.first, max(found.reserved, highest + 1)
        following = max(following, self._replay(first, highest + 1 if found is None else found.next))
        self._set_offsets(Offsets(first, following, following + RESERVE), sync=True)
        self._journal.clear()

    def _replay(self, first: int, watermark: int) -> int:
        """Writes noted rows to their segments that had not got there; returns the offset after them."""
        noted = [run for run in self._journal.read() if run.first is not None and run.first >= watermark]
        self._now = Offsets(first, watermark, watermark)
        if noted:
            self._append(self._contents(noted))
            _log.info("%s: %d rows came from the journal", self.folder, sum(run.rows for run in noted))
        return self._now.next

    # Offsets

    def _set_offsets(self, offsets: Offsets, sync: bool) -> None:
        self._offsets.write(offsets, sync)
        self._now = offsets
        if sync:
            self._safe = offsets.reserved

    def reserve(self) -> None:
        """Reserves more offsets before they run short, without holding the lock while the disk syncs."""
        with self._lock:
            if self._now.reserved - self._now.next > RESERVE // 2:
                return
            self._set_offsets(self._now._replace(reserved=self._now.next + RESERVE), sync=False)
            reserved = self._now.reserved
        self._offsets.sync()
        self._safe = max(self._safe, reserved)

    @property
    def first_offset(self) -> int:
        return self._now.first

    @property
    def next_offset(self) -> int:
        return self._now.next

    @property
    def bytes(self) -> int:
        """What the log takes up on the disk."""
        return sum([one.bytes for one in list(self.closed)]) + sum([one.bytes for one in list(self._open.values())])

    # Rows

    def append(self, runs: Sequence[Run]) -> None:
        """Writes the rows, all or none, so that readers see them and a crash of the process does not take them.

        With `sync="full"` they are on the disk, if any of them is of QoS 1 or 2. A LogError says why it could not be
        done; the rows may be tried again.
        """
        if runs:
            self.append_contents(self._contents(runs))

    def append_contents(self, contents: BufferContents, memory: memoryview = NO_MEMORY) -> None:
        """The same for the contents of a write buffer, whose data is in `memory`."""
        with self._lock:
            try:
                self._journal.switch_files()
                self._append(contents, memory)
                self._journal.discard_below(self._now.next)
            except LogError:
                raise
            except OSError as error:
                raise self._unusable(error) from error

    def _contents(self, runs: Sequence[Run]) -> BufferContents:
        return WriteBuffer.of(runs, self._now.next, self.partitions).contents

    def note(self, runs: Sequence[Run]) -> None:
        """Makes rows durable that have their offsets, and that an `append` will bring soon. A LogError as there."""
        try:
            self._journal.note(runs)
        except OSError as error:
            raise self._unusable(error) from error

    def _append(self, contents: BufferContents, memory: memoryview = NO_MEMORY) -> None:
        commit = Commit(contents, memory, self._now.next)
        if commit.following > self._safe:
            self._set_offsets(self._now._replace(reserved=commit.following + RESERVE), sync=True)
        sync = self._sync and commit.has_acknowledged  # no publisher of QoS 0 waits
        written: list[tuple[Segment, int, PartitionRows]] = []
        touched: list[Segment] = []
        try:
            for part in commit.parts:
                data = batch_bytes(self._maker.make(part, commit.topics, commit.clients))
                segment = self._writable(part.partition, part.first)
                touched.append(segment)
                segment.append(data, part.first, part.last, part.rows, part.time_us, sync)
                written.append((segment, len(data), part))
            self._set_offsets(self._now._replace(next=commit.following), sync)
        except BaseException:
            for segment in touched:  # nothing of this commit counts
                segment.cut()
            raise
        for segment, size, part in written:
            segment.keep(size, part.last, part.rows, part.time_us)
            self.rows += part.rows
            self.bytes_written += size

    def _writable(self, partition: int, first: int) -> Segment:
        """The partition's open segment; a new one if there is none or it is full."""
        segment = self._open.get(partition)
        if segment is not None and segment.size >= self._segment_bytes_max:
            self._close_segment(partition)
            segment = None
        if segment is None:
            segment = Segment.create(partition_folder(self.folder, partition), first)
            self._open[partition] = segment
        return segment

    @property
    def _segment_bytes_max(self) -> int:
        return segment_bytes_max(self.segment_bytes, self.retain_bytes, self.partitions)

    def _close_segment(self, partition: int) -> None:
        segment = self._open.pop(partition)
        segment.close()
        self.closed.append(closed_segment(segment.path))

    # Retention

    def retain(self, now_us: int) -> int:
        """Removes the segments that are beyond the bounds; returns how many."""
        with self._lock:
            oldest_us = None if not self.retain_age_s else now_us - int(self.retain_age_s * 1e6)
            if oldest_us is not None:
                span_us = int(self.retain_age_s * 1e6 / SEGMENTS_BELOW_BOUND)
                for partition, segment in list(self._open.items()):
                    if segment.rows and segment.began_us < now_us - span_us:
                        self._close_segment(partition)
            open_bytes = sum(one.bytes for one in self._open.values())
            gone = surplus(self.closed, open_bytes, self.retain_bytes, oldest_us)
            if gone:
                first = max(self._now.first, *(one.last + 1 for one in gone))
                self._set_offsets(self._now._replace(first=first), self._sync)
                for one in gone:
                    remove_segment(one.path)
                    self.closed.remove(one)
            return len(gone)

    def replace(self, old: ClosedSegment, swap: Callable[[], ClosedSegment]) -> None:
        """Replaces a segment by another form of it, unless retention has removed it in the meantime."""
        with self._lock:
            if old in self.closed:
                self.closed[self.closed.index(old)] = swap()

    # Closing

    def close(self) -> None:
        """Closes the log in good order: the next process goes on without a gap in the offsets."""
        with self._lock:
            if self._folder_lock < 0:
                return
            self._set_offsets(self._now._replace(reserved=self._now.next), sync=True)
            for segment in self._open.values():
                segment.close()
            self._open.clear()
            self._journal.close()
            self._offsets.close()
            os.close(self._folder_lock)
            self._folder_lock = -1

    def _unusable(self, error: OSError) -> LogError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.folder).free
            return LogError(f"the disk is full: the log in {self.folder} cannot be written ({free} bytes are free)")
        return LogError(
            f"the log in {self.folder} cannot be written: {error}; check the folder, its owner and the disk"
        )


def _locked(folder: Path) -> int:
    """Two brokers must not share a folder; released when the process ends, in any way."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        text = f"the log in {folder} is in use by another broker"
        raise LogInUseError(f"{text}; stop that one, or give this one another folder with log.folder") from None
    except OSError as error:
        raise LogError(f"the folder of the log {folder} cannot be used: {error.strerror}") from error
