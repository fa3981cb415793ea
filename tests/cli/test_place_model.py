"""`braidmq place` as people and scripts use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import TIMEOUT_S, in_process, on_terminal

SMALL = ("--topics", "8", "--servers", "4", "--storage", "300", "--compute", "2000")


def figures(*arguments: Any) -> list[dict[str, Any]]:
    done = in_process("place", "model", *SMALL, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_methods_side_by_side() -> None:
    found = figures("--seeds", "1-2")
    assert [one["method"] for one in found] == ["refined", "reloc", "nearest", "topic", "random"]
    by_method = {one["method"]: one for one in found}
    refined = by_method["refined"]
    assert refined["delay_ms"] == min(one["delay_ms"] for one in found)
    assert 0 <= refined["gap"] < 0.05
    assert refined["delay_ms"] == pytest.approx(refined["distance_ms"] + refined["resource_ms"], abs=1e-5)
    assert by_method["nearest"]["distance_ms"] == min(one["distance_ms"] for one in found)
    assert len({one["bound_ms"] for one in found}) == 1
    assert refined["seeds"] == [1, 2]


def test_every_combination_has_its_line() -> None:
    found = figures("--method", "reloc,nearest", "--sigma", "1,20", "--spool", "1,2", "--clusters", "1,2", "--no-bound")
    assert [(one["sigma_km"], one["spool_each"], one["clusters"], one["method"]) for one in found] == [
        (sigma, spool, clusters, method)
        for sigma in (1, 20)
        for spool in (1, 2)
        for clusters in (1, 2)
        for method in ("reloc", "nearest")
    ]
    assert all(one["gap"] is None for one in found)


def test_the_same_command_gives_the_same_figures() -> None:
    asked = ("--method", "refined,reloc,random", "--sigma", "10", "--topics", "5")
    assert figures(*asked) == figures(*asked)


def test_readings_of_the_paper_can_be_asked_for() -> None:
    asked = ("--method", "reloc", "--no-bound", "--sigma", "10", "--spool", "4", "--clusters", "2")
    usual = figures(*asked)[0]["delay_ms"]
    for reading in (
        ["--steps", "locality"],
        ["--start", "nearest", "--relations", "always"],
        ["--start", "emptiest", "--anew"],
        ["--centres", "anywhere"],
    ):
        assert figures(*asked, *reading)[0]["delay_ms"] != usual, reading


def test_a_table_for_people() -> None:
    done = in_process("place", "model", *SMALL, "--seeds", "1-2", "--topics", "5", "--method", "refined,reloc")
    assert done.returncode == 0
    assert "refined" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "±" in done.stdout
    assert "%" in done.stdout


def test_progress_is_shown_on_a_terminal() -> None:
    process, shown = on_terminal("place", "model", *SMALL, "--method", "refined")
    assert b"refined" in process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode == 0
    assert b"seed 1" in shown


def test_data_of_the_paper_are_read(tmp_path: Path) -> None:
    rows = [f"{follower}\t{1000 + 7 * follower + number}\n" for follower in range(9) for number in range(11)]
    (tmp_path / "user_sns.txt").write_text("".join(rows))
    found = figures("--method", "nearest", "--no-bound", "--data", tmp_path / "user_sns.txt")
    assert found[0]["clients"] == 8 + len(
        {1000 + 7 * follower + number for follower in range(8) for number in range(11)}
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "best"], "there is no best"),
        (["--sigma", "far"], "'far' is no number from 0 on"),
        (["--sigma", "nan"], "'nan' is no number"),
        (["--seeds", "3-1"], "the smaller one comes first"),
        (["--storage", "0"], "the storage of server s0 has to be a number above 0"),
        (["--compute", "nan"], "the computation of server s0"),
        (["--clusters", "5"], "4 servers cannot be divided into 5 clusters"),
        (["--clusters", "1.5"], "not all whole numbers"),
        (["--clients", "3"], "not from 3"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: list[str], told: str) -> None:
    done = in_process("place", "model", *SMALL, *arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = in_process("place", "model", "--data", tmp_path / "nowhere.txt")
    assert done.returncode == 3
    assert "cannot read" in done.stderr


@pytest.mark.parametrize("module", ["numpy", "scipy"])
def test_what_is_missing_is_told(module: str) -> None:
    without = f"import sys; sys.modules[{module!r}] = None; from braidmq.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", without, "place", "model"], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 3, done.stderr
    assert f"plans need {module}" in done.stderr
    assert "braidmq[place]" in done.stderr
