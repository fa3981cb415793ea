"""The short version of `python -m tests.chaos`: five brokers with a braid key, under faults and under clients that
roam."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(folder: Path, options: str) -> tuple[dict[str, Any], str]:
    """The figures of a run that was good, and its story."""
    figures = folder / "figures.json"
    command = [sys.executable, "-m", "tests.chaos", "--brokers", "5", "--clients", "30", "--groups", "4"]
    command += [*options.split(), "--folder", str(folder), "--figures", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    story = f"{done.stdout}\n{done.stderr}\nlogs and data are in {folder}"
    assert done.returncode == 0, story
    found: dict[str, Any] = json.loads(figures.read_text())
    assert found["acknowledged"] > 300, story
    assert found["deliveries"] > found["acknowledged"], story
    return found, story


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    faults = "kill,cut,stall,mute,isolate,nap,freeze"
    found, story = run(tmp_path, f"--minutes 0.7 --every 1.2 --rate 2 --roaming 0 --faults {faults}")
    assert found["faults"]["kill"] >= 1, story
    assert len(found["faults"]) >= 4, story


@pytest.mark.timeout(240)
def test_clients_that_roam_find_all_that_is_theirs(tmp_path: Path) -> None:
    found, story = run(tmp_path, "--minutes 0.5 --every 4 --rate 4 --roaming 0.7 --roam-every 3 --faults nap,drain")
    assert found["faults"]["drain"] >= 1, story
    assert found["connects"] > 80, story
