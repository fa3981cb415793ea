"""The first bytes of a journal's files: what it is, in which format, and where in the stream it belongs."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final, Literal, NamedTuple
from zlib import crc32

from braidmq.journal.errors import JournalDamaged, JournalFormatError

VERSION: Final = 1
ALL: Final = (1 << 64) - 1
"""Of `synced`: each block is on the disk before the next is written."""

Kind = Literal["segment", "snapshot"]
_MARKS: Final[dict[Kind, bytes]] = {"segment": b"BMQ-SEG\n", "snapshot": b"BMQ-SNP\n"}
_HEADER: Final = Struct("<8sIQQQQQ")
_CHECKSUM_BYTES: Final = 4
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM_BYTES


class FileHeader(NamedTuple):
    kind: Kind
    journal_id: int
    position: int
    """Of a segment: where it begins. A snapshot stands for all before it."""
    sequence: int
    """Of the last block before this position."""
    epoch: int
    synced: int
    """The position up to which the journal was on the disk for sure when this file was begun."""

    def encode(self) -> bytes:
        body = _HEADER.pack(_MARKS[self.kind], VERSION, *self[1:])
        return body + crc32(body).to_bytes(_CHECKSUM_BYTES, "little")


def read_header(path: Path, kind: Kind) -> FileHeader | None:
    """The header of a file; None if it ends, or has nothing but zeros, before the end of its header."""
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES or not any(data):
        if _MARKS[kind].startswith(data[: len(_MARKS[kind])]) or not any(data):
            return None
        raise JournalFormatError(path, None)
    mark, version, *fields = _HEADER.unpack_from(data)
    if mark != _MARKS[kind]:
        raise JournalFormatError(path, None)
    if version != VERSION:
        raise JournalFormatError(path, version)
    if crc32(data[: _HEADER.size]) != int.from_bytes(data[_HEADER.size :], "little"):
        raise JournalDamaged(path, "its header does not have its checksum")
    return FileHeader(kind, *fields)
