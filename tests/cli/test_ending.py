"""The end of a braid in one process, when a site of it does not answer."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.cli.braids import Braid, Subscriber
from tests.cli.commands import COMMAND, environment

LEFT_SILENTLY = "left the braid without a word"


def test_a_broker_that_hangs_holds_up_one_site_and_not_all(tmp_path: Path) -> None:
    braid = Braid(tmp_path)
    join = f"127.0.0.1:{braid.port(0, 'braid')}"
    command = [
        *COMMAND,
        "up",
        "--port",
        "0",
        "--data",
        str(tmp_path / "other"),
        "--join",
        join,
        "--braid",
        "127.0.0.1:0",
    ]
    other = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
    subscribers = []
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        for number in range(30):  # so that each site stands beside the one that hangs
            subscribers.append(Subscriber(braid.ports[number % 3], f"topic/{number}"))
        other.send_signal(signal.SIGSTOP)
        braid.process.send_signal(signal.SIGTERM)
        assert braid.process.wait() == 0
    finally:
        for one in subscribers:
            one.close()
        for process in (other, braid.process):
            process.kill()
            process.communicate()
    assert (tmp_path / "log").read_text().count(LEFT_SILENTLY) <= 1
