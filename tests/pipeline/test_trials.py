"""Trials of the simulator in a table: here, on Spark, and where a run was stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.trials.table import SCHEMA, TrialTable, on_connect, on_spark, play_all, play_here, table_of
from braidmq.pipeline.trials.trial_process import played, trial_process
from braidmq.sim.trials.figures import OF_THE_MACHINE
from braidmq.sim.trials.rows import name_of, row_of, trial_of
from braidmq.sim.trials.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 300
pytestmark = pytest.mark.timeout(3 * TIMEOUT_S)
TRIALS = [
    Trial(method=method, pattern="delta", nodes=40, seed=seed)
    for method in ("relayfree", "scribe")
    for seed in (1, 2, 3)
]


def ignore(_done: int, _total: int) -> None:
    pass


def rows(table: TrialTable) -> list[dict[str, Any]]:
    """Without what differs from run to run, in the order of trials."""
    found = sorted(table.read().to_pylist(), key=lambda row: row["trial"])
    return [{name: value for name, value in row.items() if name not in OF_THE_MACHINE} for row in found]


def braidmq(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "braidmq", *arguments]
    environ = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)


def test_a_table_is_what_arrow_makes_of_the_rows() -> None:
    failed = row_of(Trial(method="relayfree", pattern="delta", nodes=40, faults="nonsense"))
    found = [*map(row_of, TRIALS[:2]), failed | {"error": "größer als 1"}]
    assert failed["hops_mean"] is None
    assert table_of(found).equals(pa.Table.from_pylist(found, schema=SCHEMA))
    assert table_of([]).equals(SCHEMA.empty_table())


def test_the_same_trials_give_the_same_rows_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    here, there = TrialTable(tmp_path / "here"), TrialTable(tmp_path / "there")
    play_all(TRIALS, here, play_here, 1, ignore)
    play_all(TRIALS, there, on_spark(spark.sparkContext, 2), 2, ignore)
    assert rows(here) == rows(there)
    as_tables = TrialTable(tmp_path / "as_tables")
    play_all(TRIALS, as_tables, on_connect(spark, 2), 2, ignore)
    assert rows(here) == rows(as_tables)
    assert len(rows(here)) == len(TRIALS)
    assert there.read().schema == SCHEMA
    assert spark.read.parquet(str(there.folder)).where("hops_mean > 0").count() == len(TRIALS)


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    table = TrialTable(tmp_path)
    played: list[str] = []

    def play(names: list[str]) -> pa.Table:
        if played:  # the second round
            raise KeyboardInterrupt
        played.extend(names)
        return play_here(names)

    with pytest.raises(KeyboardInterrupt):
        play_all(TRIALS, table, play, 1, ignore)
    assert table.done() == set(played)
    assert 0 < len(played) < len(TRIALS)
    told: list[tuple[int, int]] = []
    assert play_all(TRIALS, table, play_here, 1, lambda *done: told.append(done)) == len(played)
    assert told[0] == (len(played), len(TRIALS))
    assert told[-1] == (len(TRIALS), len(TRIALS))
    assert len(rows(table)) == len(TRIALS)
    assert play_all(TRIALS, table, play, 1, ignore) == len(TRIALS)


def test_a_trial_has_a_name_that_says_all_about_it() -> None:
    for trial in TRIALS:
        assert trial_of(name_of(trial)) == trial
    assert len(set(map(name_of, TRIALS))) == len(TRIALS)


def test_a_trial_that_cannot_be_played_is_a_row_with_its_error() -> None:
    row = row_of(Trial(method="scribe", pattern="delta", nodes=40, cut="mrf"))
    assert "does not split ranges" in row["error"]
    assert row["hops_mean"] is None


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(PipelineError, match=re.escape("other.parquet is no table of trials")):
        TrialTable(tmp_path).done()


def test_the_command_makes_a_table_and_adds_to_it(tmp_path: Path) -> None:
    out = str(tmp_path / "trials")
    sweep = ("sim", "-m", "relayfree,scribe", "-p", "delta,zeta", "-n", "40", "--out", out, "--json")
    first = json.loads(braidmq(*sweep, "--seeds", "1-2").stdout)
    assert (first["trials"], first["were_there"]) == (8, 0)
    assert {(group["method"], group["pattern"], group["trials"]) for group in first["groups"]} == {
        (method, pattern, 2) for method in ("relayfree", "scribe") for pattern in ("delta", "zeta")
    }
    second = json.loads(braidmq(*sweep, "--seeds", "1-3").stdout)
    assert (second["trials"], second["were_there"]) == (12, 8)


def test_the_command_plays_on_spark(tmp_path: Path) -> None:
    """The first start leaves an archive of Java's classes behind, and the second one takes it."""
    out, cache = str(tmp_path / "trials"), {"XDG_CACHE_HOME": str(tmp_path)}
    sweep = ("sim", "-n", "40", "--spark", "local[2]", "--out", out, "--json")
    first = braidmq(*sweep, "--seeds", "1-5", **cache)
    assert (first.returncode, first.stderr) == (0, "")
    [archive] = (tmp_path / "braidmq").glob("java-*/*.jsa")
    made_at = archive.stat().st_mtime_ns
    second = braidmq(*sweep, "--seeds", "1-8", **cache)
    assert (second.returncode, second.stderr) == (0, "")
    told = json.loads(second.stdout)
    assert (told["trials"], told["were_there"]) == (8, 5)
    assert [path.stat().st_mtime_ns for path in (tmp_path / "braidmq").glob("java-*/spark-*")] == [made_at]
    here = TrialTable(tmp_path / "here")
    trials = [Trial(method="relayfree", pattern="delta", nodes=40, seed=seed) for seed in range(1, 9)]
    play_all(trials, here, play_here, 1, ignore)
    assert rows(TrialTable(Path(out))) == rows(here)


def test_java_may_take_its_time_to_write_its_classes_down(tmp_path: Path) -> None:
    """Even where any other Java would have been killed long since."""
    program = """
        from braidmq.pipeline import context
        from braidmq.pipeline.launch import gateway

        gateway.JAVA_END_S = 0.0
        with context.context("archive", "local[1]") as made:
            print(made.parallelize(["played"]).collect())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environ)
    assert (done.returncode, done.stdout) == (0, "['played']\n"), done.stderr
    assert len(list((tmp_path / "braidmq").glob("java-*/*.jsa"))) == 1


def test_a_player_that_ends_is_replaced() -> None:
    name = name_of(TRIALS[0])
    first = trial_process()
    assert first.play(name)["trial"] == name
    first._process.kill()
    with pytest.raises(PipelineError, match="has ended, with exit code -9"):
        played([name])
    assert played([name])[0]["trial"] == name
    assert trial_process() is not first


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "trials"
    command = [sys.executable, "-m", "braidmq", "sim", "-n", "100", "--seeds", "1-100000", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ends_at = time.monotonic() + TIMEOUT_S
    while not list(out.glob("[!.]*.parquet")):
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "of 100,000 trials are in" in told
    assert "Traceback" not in told
    assert TrialTable(out).done()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--spark", "local[2]"), "--out FOLDER"),
        (("-m", "scribe,relayfree"), "--out FOLDER"),
        (("-n", "40,x", "--out", "t"), "'x' is no number of brokers"),
        (("-n", "40", "-p", "delta", "--out", "/proc/none"), "the table cannot be in /proc/none"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, ...], told: str) -> None:
    done = braidmq("sim", *arguments)
    assert done.returncode in (2, 3)
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
