"""`python -m braidmq.journal.compactor FOLDER POSITION`: a compaction in a process of its own.

Prints the size of the snapshot, or on the error output why there is none. It may be killed at any time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from braidmq.journal.compaction import compact
from braidmq.journal.errors import JournalDamaged, JournalFormatError

NICENESS: Final = 10
"""The broker comes first."""


def main(folder: str, position: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    os.nice(NICENESS)
    try:
        sys.stdout.write(f"{compact(Path(folder), int(position))}\n")
    except (OSError, JournalDamaged, JournalFormatError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
