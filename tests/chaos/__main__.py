"""`python -m tests.chaos`: brokers are killed and links cut for minutes, under load; nothing acknowledged may be lost.

A run that fails says what is missing, and keeps the logs and data folders of the brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from braidmq.pubsub.registry import METHOD_DEFAULT, METHODS
from tests.chaos import security
from tests.chaos.faults import KINDS
from tests.chaos.soak import Options, Soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults under load")
    parser.add_argument("--brokers", type=int, default=10)
    parser.add_argument("--clients", type=int, default=100, help="half publish, half subscribe")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the clients")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between faults")
    parser.add_argument("--quiet", type=float, default=120.0, help="seconds in which everything must have arrived")
    parser.add_argument("--rate", type=float, default=1.0, help="publications a second, of each publisher")
    parser.add_argument("--groups", type=int, default=10, help="of topics")
    parser.add_argument("--method", default=METHOD_DEFAULT, choices=METHODS)
    parser.add_argument("--security", default="key", choices=security.KINDS, help="between brokers")
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds of faults, with commas between")
    parser.add_argument("--folder", type=Path, help="for logs and data; a temporary one if not given")
    given = parser.parse_args()
    kinds = tuple(given.faults.split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--faults: {', '.join(unknown)} is not known; there are {', '.join(KINDS)}")
    options = Options(
        brokers=given.brokers,
        clients=given.clients,
        seconds=given.minutes * 60,
        every_s=given.every,
        quiet_s=given.quiet,
        rate=given.rate,
        groups=given.groups,
        seed=given.seed,
        method=given.method,
        security=given.security,
        kinds=kinds,
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="braidmq-chaos-"))
    soak = Soak(options, folder, lambda text: print(text, flush=True))
    verdict = asyncio.run(soak.run())
    print("\n".join([f"ran {options.describe()}", *verdict.lines()]))
    if verdict.is_good:
        if given.folder is None:
            shutil.rmtree(folder)
        return 0
    print(f"logs and data are kept in {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
