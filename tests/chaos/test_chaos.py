"""The short version of `python -m tests.chaos`: five brokers with a braid key, a minute of faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import KINDS


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = "--minutes 0.75 --brokers 5 --clients 30 --every 1.2 --quiet 60 --rate 2 --groups 4 --seed 1"
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        *options.split(),
        "--folder",
        str(tmp_path),
        "--figures",
        str(figures),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    story = f"{run.stdout}\n{run.stderr}\nlogs and data are in {tmp_path}"
    assert run.returncode == 0, story
    found = json.loads(figures.read_text())
    assert found["acknowledged"] > 500, story
    assert found["deliveries"] > found["acknowledged"], story
    assert found["connects"] > 100, story
    assert len(found["faults"]) >= len(KINDS) - 1, story
