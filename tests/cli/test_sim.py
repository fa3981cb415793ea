"""`braidmq sim` as people and scripts use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from braidmq.pubsub.method import Method
from braidmq.sim.engine import Simulator
from braidmq.sim.trials.figures import OF_THE_MACHINE
from braidmq.sim.trials.methods import TRIAL_METHODS, Options, Ordered
from braidmq.sim.trials.patterns import RoleAssignment
from tests.cli.commands import TIMEOUT_S, in_process, on_terminal

COMMAND = [sys.executable, "-m", "braidmq", "sim"]
NEEDED = {
    *("hops_mean", "hops_p50", "hops_p99", "hops_max", "messages", "forwards_max", "children_max", "bytes"),
    *("deliveries", "missed", "duplicates", "bothered", "simulated_messages_per_s", "rss_mib", "build_s"),
    *("method", "pattern", "nodes", "seed", "faults", "network", "cut"),
}


def sim(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return in_process("sim", *arguments)


def figures(*arguments: Any) -> dict[str, Any]:
    done = sim(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--method", "adaptive", "--nodes", "100", "--network", "uniform"],
        ["--method", "relayfree", "--nodes", "20", "--faults", "loss=0.02,dup=0.02,churn=1"],
    ],
)
def test_the_same_command_gives_the_same_figures_in_every_process(arguments: list[str]) -> None:
    found = []
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [*COMMAND, *arguments, "--seed", "9", "--json"], capture_output=True, text=True, env=env, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        found.append({name: value for name, value in json.loads(done.stdout).items() if name not in OF_THE_MACHINE})
    assert found[0] == found[1]
    assert found[0]["deliveries"] > 0


def test_json_has_the_figures_and_the_parameters() -> None:
    found = figures("--nodes", 50)
    assert set(found) >= NEEDED
    assert (found["method"], found["pattern"], found["nodes"], found["seed"]) == ("relayfree", "delta", 50, 1)
    assert (found["deliveries"], found["missed"], found["complaints"]) == (45, 0, 0)


def test_nothing_is_sent_when_nobody_listens() -> None:
    found = figures("--method", "relayfree", "--pattern", "1x0x100")
    assert (found["messages"], found["suspended"]) == (0, 100)


def test_several_seeds_give_mean_and_range() -> None:
    one, two, both = (figures("--nodes", 50, *seeds) for seeds in (["--seed", 4], ["--seed", 6], ["--seeds", "4,6"]))
    assert both["seeds"] == [4, 6]
    assert both["hops_mean"] == pytest.approx((one["hops_mean"] + two["hops_mean"]) / 2)
    assert both["ranges"]["hops_mean"] == sorted([one["hops_mean"], two["hops_mean"]])
    shown = sim("--nodes", 50, "--seeds", "1-3").stdout
    assert "3 seeds" in shown
    assert " … " in shown


def test_the_table_is_for_people_and_progress_for_terminals() -> None:
    done = sim("--nodes", 57)
    for words in ("hops, mean", "p50", "p99", "messages", "forwards", "children", "bytes", "virtual time", "memory"):
        assert words in done.stdout
    assert "57 nodes" in done.stdout
    assert "7 nodes take no part: each subscribes to a topic of its own" in done.stdout
    assert done.stderr == ""
    process, shown = on_terminal("sim", "--nodes", 2000, "--json")
    assert b"publications" in shown
    assert json.loads(process.communicate(timeout=TIMEOUT_S)[0])["missed"] == 0
    assert process.returncode == 0


def test_a_picture_is_written(tmp_path: Path) -> None:
    picture = tmp_path / "delivery.svg"
    done = sim("--nodes", 20, "--trace", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_text().startswith("<svg")
    assert str(picture) in done.stderr


@pytest.mark.parametrize("name", ["delivery.png", "delivery", "delivery.svg.gz"])
def test_a_picture_under_another_ending_is_refused_before_the_trial(tmp_path: Path, name: str) -> None:
    done = sim("--nodes", 20, "--trace", tmp_path / name)
    assert done.returncode == 2
    assert "pictures are SVG" in done.stderr
    assert ".svg" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pattern", "omega"], "alpha, beta, gamma, delta, epsilon, zeta"),
        (["--method", "telepathy"], "suzaku"),
        (["--nodes", "5"], "at least 10"),
        (["--nodes", "0"], "nodes"),
        (["--pattern", "0x1x1"], "publishes nothing"),
        (["--faults", "gremlins=1"], "loss=PROBABILITY"),
        (["--faults", "churn=x"], "churn=EVENTS_A_SECOND"),
        (["--network", "string"], "constant, uniform, wan"),
        (["--method", "scribe", "--cut", "mrf"], "does not split"),
        (["--table-size", "60"], "only the method adaptive"),
        (["--seeds", "one"], "no number"),
        (["--seeds", "3-1"], "smaller one comes first"),
        (["--seeds", "1-9999"], "at most 1,000"),
        (["--seed", "1", "--seeds", "1-2"], "both --seed and --seeds"),
        (["--seeds", "1-2", "--trace", "x.svg"], "one trial"),
        (["--trace", "no/such/directory/x.svg"], "no directory"),
    ],
)
def test_wrong_input_is_told_without_a_traceback(arguments: list[str], words: str) -> None:
    done = sim(*arguments)
    assert done.returncode == 2
    assert words in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


class Forgetful(Ordered, frozen=True):
    """Relay-free, but one broker is dead, and nobody knows."""

    def lay_out(self, sim: Simulator, cast: RoleAssignment, options: Options) -> dict[int, Method]:
        methods = Ordered.lay_out(self, sim, cast, options)
        sim.hosts[cast.topics[0].subscribers[0]].crash()
        return methods


def test_complaints_are_printed_with_the_seed_and_the_exit_code_is_1() -> None:
    good = TRIAL_METHODS["relayfree"]
    assert isinstance(good, Ordered)
    bad = Forgetful(good.entry, good.lay_out_overlay)
    with mock.patch.dict(TRIAL_METHODS, {"relayfree": bad}):
        done = sim("--nodes", 20, "--seed", 42, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["missed"] >= 1
    assert "did not reach" in done.stderr
    assert "--seed 42" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_teaches_by_examples() -> None:
    done = sim("--help")
    assert done.returncode == 0
    _, examples = done.stdout.split("Examples")
    assert len(re.findall(r"^ .*braidmq sim", examples, re.MULTILINE)) >= 3
    for name in TRIAL_METHODS:
        assert name in done.stdout
