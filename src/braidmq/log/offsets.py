"""Where a log begins and ends, in one small file that is overwritten in place.

`next` is the watermark: every row below it is in its partition, and readers go no further. `reserved` is ahead of it
and on the disk before any offset up to there is used; after a crash, even of the machine, the log goes on from there,
and so no offset is ever used twice. `first` is where retention has come to: from there on nothing is missing.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from braidmq.log.checksum import crc32
from braidmq.log.errors import LogError

FILE_NAME: Final = "offsets"
RESERVE: Final = 1 << 24
"""How many offsets are reserved at a time; a crash leaves a gap of at most so many."""

_MAGIC: Final = b"BRAIDLOG"
_BODY: Final = struct.Struct("<8sqqq")
_SIZE: Final = _BODY.size + 4
_READS_MAX: Final = 100
"""How often a reader tries again that read the file while it was being overwritten."""


class Offsets(NamedTuple):
    first: int
    next: int
    reserved: int


def parse(data: bytes) -> Offsets | None:
    """None if the data is incomplete or damaged."""
    if len(data) < _SIZE or crc32(data[: _BODY.size]) != int.from_bytes(data[_BODY.size : _SIZE], "little"):
        return None
    magic, first, following, reserved = _BODY.unpack_from(data)
    return Offsets(first, following, reserved) if magic == _MAGIC else None


def read_offsets(folder: Path) -> Offsets:
    path = folder / FILE_NAME
    try:
        for _ in range(_READS_MAX):
            found = parse(path.read_bytes())
            if found is not None:
                return found
    except FileNotFoundError:
        raise LogError(f"{folder} has no log in it; is it the folder of [log] in the broker's configuration?") from None
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    raise LogError(f"{path} is damaged; the broker makes it anew when it starts")


class OffsetsFile:
    """The file, open for the writer of the log."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.found = parse(os.pread(self._file, _SIZE, 0))
        """What an earlier process left; None in a new log, and if the file is damaged."""

    def write(self, offsets: Offsets, sync: bool) -> None:
        body = _BODY.pack(_MAGIC, offsets.first, offsets.next, offsets.reserved)
        os.pwrite(self._file, body + crc32(body).to_bytes(4, "little"), 0)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Waits until what was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)
