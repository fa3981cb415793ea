"""The figures in docs/simulation.md are what the commands beside them print, as far as that takes seconds."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from statistics import mean

import pytest

from braidmq.sim.trials.trial import Trial, play
from tests.cli.commands import in_process

DOCUMENT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \|[^|]*\| (?P<measured>[^|]+) \| `braidmq sim (?P<command>[^`]+)` \|$", re.MULTILINE
)
CHEAP_NODES_MAX = 10_000
TIMEOUT_S = 600
"""Some of them take seconds of CPU time, which are minutes on a busy machine."""

pytestmark = pytest.mark.timeout(TIMEOUT_S)

NAMES = {"mean": "hops_mean", "most forwards": "forwards_max", "most": "hops_max", "messages": "messages"}
"""What a row has, by the words for it."""


def cheap_rows() -> list[tuple[str, str, str]]:
    """Words, figures and command of each row that takes little time; "…" stands for the words of the row above."""
    rows, words = [], ""
    for row in ROW.finditer(DOCUMENT):
        words = words if row["what"].startswith("…") else row["what"]
        nodes = re.search(r"--nodes (\d+)", row["command"])
        if nodes is not None and int(nodes[1]) <= CHEAP_NODES_MAX:
            rows.append((words, row["measured"], row["command"]))
    return rows


def numbers_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_there_are_rows_to_look_at() -> None:
    assert len(cheap_rows()) >= 5


@pytest.mark.parametrize(("words", "measured", "command"), cheap_rows())
def test_a_command_prints_what_is_documented(words: str, measured: str, command: str) -> None:
    done = in_process("sim", *shlex.split(command), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [NAMES[word] for word in re.findall("mean|most forwards|most|messages", words)]
    assert names
    assert [round(found[name], 2) for name in names] == numbers_in(measured)


def test_hops_to_a_few_subscribers_are_as_documented() -> None:
    row = re.search(r"^\| 10 \| ([\d.]+) \|", DOCUMENT, re.MULTILINE)
    assert row is not None
    trials = [Trial(method="relayfree", cut="sfb", pattern="subs10", seed=seed) for seed in (1, 2, 3)]
    assert round(mean(play(trial).figures.hops_mean for trial in trials), 2) == float(row[1])


def test_what_learning_takes_is_as_documented() -> None:
    text = re.search(r"([\d.]+) hops\s+after 10 s \(([\d,]+)\s+messages\),\s+([\d.]+)\s+before", DOCUMENT)
    assert text is not None
    learnt, plain = (play(Trial(method="adaptive", pattern="subs80", learn_s=learn_s)).figures for learn_s in (10, 0))
    found = [round(learnt.hops_mean, 2), learnt.build_messages, round(plain.hops_mean, 2)]
    assert found == [number for group in text.groups() for number in numbers_in(group)]
