"""Trials of selections: the papers' figures at small sizes, the ledger's, brokers that crash, and what is checked."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidmq.overlay.peers import Peer
from braidmq.select import holder
from braidmq.select.group import ComponentGroup
from braidmq.select.holder import Holder
from braidmq.select.member import Component, Member, Reservation
from braidmq.select.request import SelectionRequest
from braidmq.select.selector import Selector
from braidmq.sim.checkers.selection import no_reservation_is_lost, no_slot_is_reserved_twice
from braidmq.sim.engine import Simulator
from braidmq.sim.trials.figures import OF_THE_MACHINE, SelectionFigures
from braidmq.sim.trials.rows import row_of
from braidmq.sim.trials.trial import Trial, TrialError, TrialReport, play
from tests.cli.commands import in_process


def trial(method: str, **more: object) -> TrialReport:
    report = play(msgspec.convert({"method": method, "pattern": "delta", **more}, Trial))
    assert report.complaints == []
    return report


def selection(report: TrialReport) -> SelectionFigures:
    assert report.figures.selection is not None
    return report.figures.selection


@pytest.mark.parametrize(("size", "messages"), [(8, 15.5), (16, 32.0), (32, 64.5), (64, 129.0)])
def test_multicast_takes_the_papers_messages_exactly(size: int, messages: float) -> None:
    """Two for each member but the sender, and half of log2 N_r to the one that is reserved (Table 4 (b))."""
    found = selection(trial("multicast", group=size, nodes=size))
    assert found.request_messages_per_request == messages
    assert found.reserved == size


def test_close_takes_the_papers_hops_where_no_update_travels() -> None:
    reports = [trial("anycast", group=64, seed=seed) for seed in range(1, 13)]
    mean = sum(selection(report).traffic_kib for report in reports) / len(reports)
    assert mean == pytest.approx(920.5, rel=0.15), "50 seeds are within 10 %"
    found = selection(reports[0])
    assert sum(found.forward_levels[8:]) == sum(found.backward_levels[7:]) == 0, "levels above 6 are not used"
    assert sum(found.backward_levels) < sum(found.forward_levels)


def test_updates_save_hops() -> None:
    never, often = (trial("anycast", group=16, nodes=32, wait=wait).figures.hops_mean for wait in (0, 4))
    assert often < never


def test_changes_that_are_told_at_once_save_hops_where_no_update_travels() -> None:
    never, at_once = (
        sum(trial("anycast", group=64, nodes=64, aggregates=how, seed=seed).figures.hops_mean for seed in range(1, 5))
        for how in ("all", "at-once")
    )
    assert at_once < never


def test_cut_aggregates_add_little_to_the_upkeep() -> None:
    none, cut, everything = (
        selection(trial("ledger", group=16, nodes=32, wait=1, requests=12, aggregates=how)).upkeep_bytes_per_s
        for how in ("none", "cut", "all")
    )
    assert none < cut <= 1.05 * none < everything


ROW = re.compile(
    r"^\| (?P<what>[^|]+) \|[^|]*\| (?P<measured>[^|]+) \| `braidmq sim (?P<command>[^`]+)` \|$", re.MULTILINE
)
DOCUMENT = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
NAMES = {
    "hops": "hops_mean",
    "messages": "selection_messages_per_request",
    "KiB": "selection_traffic_kib",
    "missed": "selection_missed_percent",
}
"""What a row of the page has, by the words for it."""
CHEAP = [
    (row["what"], row["measured"], row["command"])
    for row in ROW.finditer(DOCUMENT)
    if not any(dear in row["command"] for dear in ("--wait", "1-50", "1024", "loss="))
]


def test_there_are_rows_to_look_at() -> None:
    assert len(CHEAP) >= 6


@pytest.mark.parametrize(("words", "measured", "command"), CHEAP)
def test_a_command_prints_what_is_documented(words: str, measured: str, command: str) -> None:
    done = in_process("sim", *shlex.split(command), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [NAMES[word] for word in re.findall("hops|messages|KiB|missed", words)]
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", measured)]
    assert names
    assert [round(found[name], 2) for name in names] == numbers


def test_the_ledger_takes_one_hop_and_two_messages() -> None:
    for size in (16, 64, 256):
        report = trial("ledger", group=size, nodes=size)
        assert report.figures.hops_mean <= 1.0
        assert selection(report).messages_per_request <= 2.0


@pytest.mark.parametrize("occupancy", [0.8, 0.95])
@pytest.mark.parametrize("faults", [None, "loss=0.01"])
def test_the_ledger_finds_what_is_released(occupancy: float, faults: str | None) -> None:
    report = trial("ledger", group=32, nodes=32, slots=8, occupancy=occupancy, requests=300, faults=faults)
    assert report.figures.hops_mean <= 1.2
    assert selection(report).missed_percent < (0.1 if faults is None else 3.0)


@pytest.mark.parametrize("seed", [1, 2, 7])
@pytest.mark.parametrize(
    "faults", ["churn=0.2", "loss=0.02,dup=0.02,reorder=0.05,churn=0.2", "partition=20-80,churn=0.1"]
)
def test_nothing_is_reserved_twice_while_members_and_delegates_crash(seed: int, faults: str) -> None:
    report = trial("ledger", group=12, nodes=12, slots=2, seed=seed, faults=faults)
    assert report.figures.deliveries > 20
    assert report.figures.missed == 0, "when it is calm, all that is free is found"


def test_a_member_that_forgets_and_does_not_rest_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Selector.offer

    async def offer_at_once(self: Selector, *given: Any, **more: Any) -> Member:
        return await offer(self, *given[:4])

    monkeypatch.setattr(Selector, "offer", offer_at_once)
    report = play(Trial(method="ledger", pattern="", group=12, nodes=12, slots=2, seed=2, faults="churn=0.2"))
    assert any("holders" in complaint for complaint in report.complaints)


def test_a_holder_that_counts_on_more_than_its_lease_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "SAFETY", 2.0)
    report = play(Trial(method="ledger", pattern="", group=12, nodes=12, slots=2, faults="partition=20-80,churn=0.1"))
    assert any("does not hold" in complaint for complaint in report.complaints)


def test_a_trial_repeats() -> None:
    def figures(seed: int) -> dict[str, object]:
        report = trial("ledger", group=12, nodes=12, slots=2, seed=seed, faults="loss=0.05,churn=0.2")
        found = msgspec.structs.asdict(report.figures)
        return {name: value for name, value in found.items() if name not in OF_THE_MACHINE}

    assert figures(3) == figures(3) != figures(4)


def test_a_trial_is_a_row() -> None:
    row = row_of(Trial(method="ledger", pattern="delta", group=8, nodes=8))
    assert (row["error"], row["group"], row["select_reserved"]) == (None, 8, 8)
    assert row["select_messages_per_request"] == 1.75
    assert row_of(Trial(method="relayfree", pattern="delta", nodes=40))["select_reserved"] is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "ledger", "group": 200, "nodes": 100}, "a group of 200"),
        ({"method": "ledger", "strategy": "close"}, "no strategy 'close' of ledger"),
        ({"method": "anycast", "strategy": "best"}, "no strategy 'best'"),
        ({"method": "anycast", "aggregates": "some"}, "no aggregates 'some'"),
        ({"method": "anycast", "occupancy": 1.5}, "an occupancy of 1.5"),
        ({"method": "anycast", "faults": "churn=1"}, "with the ledger"),
        ({"method": "ledger", "faults": "jump=0.1"}, "clocks"),
        ({"method": "ledger", "wait": -1}, "periods between"),
        ({"method": "relayfree", "group": 8}, "group is of selections"),
    ],
)
def test_trials_that_make_no_sense_say_why(given: dict[str, object], words: str) -> None:
    with pytest.raises(TrialError, match=words):
        play(msgspec.convert({"pattern": "delta", **given}, Trial))


def test_the_checkers_notice_what_is_wrong() -> None:
    sim = Simulator(1)
    host = sim.host(0)
    group = ComponentGroup("c1", "edge1")
    me = Peer(group.key("b0"), 0)
    member = Member(group, me.key, 0)
    member.add(Component("a"))
    taken = member.take(SelectionRequest("r1", group, 60.0), me, 0.0)
    assert taken is not None
    mine = Holder(host, taken, 0.0)
    other = Holder(host, Reservation("r2", me, "a", (0, 9), 60.0), 0.0)
    slots = {(me.key, "a"): 1}
    assert no_slot_is_reserved_twice([mine], slots) == no_reservation_is_lost([mine], {me.key: member}) == []
    assert "2 holders" in no_slot_is_reserved_twice([mine, other], slots)[0]
    assert "r2 counts on a" in no_reservation_is_lost([mine, other], {me.key: member})[0]
