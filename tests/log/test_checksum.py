"""A log's sums are zlib's, whoever counts them: one that is written with `isal` is read without it, and back."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from braidmq.log.checksum import crc32
from braidmq.log.log import Log
from tests.log.rows import numbers_in, write

WITHOUT = """
import sys
sys.modules["isal"] = None
from pathlib import Path
from braidmq.log.checksum import crc32
from braidmq.log.log import Log
from tests.log.rows import numbers_in, write
import zlib
assert crc32 is zlib.crc32
folder = Path(sys.argv[1])
assert numbers_in(folder) == [0, 1, 2]
log = Log(folder, "b")
write(log, 3, 4)
log.close()
"""


@given(st.binary(max_size=5000), st.integers(0, 100))
def test_the_sums_are_zlibs(data: bytes, start: int) -> None:
    assert crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


def test_a_log_is_read_and_written_without_isal(tmp_path: Path) -> None:
    assert crc32.__module__ != zlib.crc32.__module__, "isal comes with the extra `log`"
    log = Log(tmp_path / "log", "b")
    write(log, 0, 1, 2)
    log.close()
    subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path / "log")], check=True)
    assert numbers_in(tmp_path / "log") == [0, 1, 2, 3, 4]
