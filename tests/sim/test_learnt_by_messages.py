"""Nothing that is checked or measured was told to the brokers by the layout: one that is blind or silent is found out.

Each trial is played as it is, without complaints, and with a broken protocol, of which the checkers complain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from braidmq.host import Reply
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.flexible.learning import TableLearning
from braidmq.pubsub.baselines.bayeux import Bayeux, BayeuxTree
from braidmq.pubsub.baselines.can.flooding import Flooding
from braidmq.pubsub.baselines.scribe import Scribe
from braidmq.pubsub.covers.known_wants import KnownWants
from braidmq.pubsub.covers.multicast import Multicast
from braidmq.pubsub.covers.rendezvous import Rendezvous
from braidmq.pubsub.effect import Effect
from braidmq.pubsub.locality.delegates import ClusterDirectories
from braidmq.pubsub.locality.locality import HandOverAccepted, Locality
from braidmq.pubsub.relay_free.demand import DemandTracker
from braidmq.sim.engine import Simulator
from braidmq.sim.trials.brokers import TrialBrokers
from braidmq.sim.trials.methods import TRIAL_METHODS, LearningTables, Options
from braidmq.sim.trials.patterns import RoleAssignment, Topic
from braidmq.sim.trials.trial import Trial, TrialReport, play

DESERTED = "10x0x3"
SUSPENDED, PUBLISHING, MISSED = "has subscribers, but suspended", "has no subscribers, but publishing", "did not reach"
HANDED = "was handed to the clients of"
sees_subscriber = DemandTracker.sees_subscriber


def trial(method: str, pattern: str, **more: object) -> TrialReport:
    return play(msgspec.convert({"method": method, "pattern": pattern, **more}, Trial))


def nothing(*_: object) -> None:
    """Does not do what it should."""


async def nothing_at_all(*_: object) -> None:
    """Does not do what it should, at leisure."""


async def says_so_to_nobody(*_: object) -> bool:
    """A new subscriber that tells no publisher of itself; it is one of two ways in which they find out."""
    return True


def sees_nobody_go(self: DemandTracker, topic: str, key: bytes) -> bool | None:
    return sees_subscriber(self, topic, key) or None


def sees_everybody(self: DemandTracker, topic: str, key: bytes) -> bool | None:
    return None if sees_subscriber(self, topic, key) is None else True


def nowhere(*_: object) -> dict[object, object]:
    return {}


def takes_and_keeps(*_: object) -> Reply:
    return HandOverAccepted()


def notes_nothing(_self: Bayeux, _tree: BayeuxTree, _to: object) -> bool:
    return True


async def asks_nobody(*_: object) -> tuple[list[bytes], bool]:
    """A broker that looks for no others; those that came before it do not find it either."""
    return [], True


def forgets_nothing(*_: object) -> list[str]:
    return []


def no_children(*_: object) -> Iterable[object]:
    return ()


ORDERED = ["suzaku", "relayfree", "adaptive"]
MUTATIONS: list[tuple[str, str, type, str, Callable[..., Any], str]] = [
    *(
        (one, DESERTED, DemandTracker, "sees_subscriber", nothing, SUSPENDED) for one in ORDERED
    ),  # a blind rendezvous point
    *((one, DESERTED, DemandTracker, "sees_subscriber", sees_nobody_go, PUBLISHING) for one in ORDERED),
    *((one, DESERTED, DemandTracker, "sees_subscriber", sees_everybody, PUBLISHING) for one in ORDERED),
    *((one, DESERTED, DemandTracker, "signal", nothing, SUSPENDED) for one in ORDERED),  # a silent one
    *((one, "zeta", DemandTracker, "sees_subscriber", nothing, SUSPENDED) for one in ORDERED),
    *((one, "zeta", DemandTracker, "signal", nothing, SUSPENDED) for one in ORDERED),
    ("locality", DESERTED, ClusterDirectories, "learn", nothing_at_all, SUSPENDED),  # a publisher that never asks
    ("locality", DESERTED, Locality, "_check_regularly", nothing_at_all, SUSPENDED),  # one that asks once
    ("locality", "zeta", ClusterDirectories, "learn", nothing_at_all, SUSPENDED),
    ("locality", "3x12x2", Locality, "on_hand_over", takes_and_keeps, MISSED),  # a delegate that does not forward
    ("covers", DESERTED, Rendezvous, "ask", asks_nobody, SUSPENDED),  # a broker that meets nobody
    ("covers", DESERTED, KnownWants, "on_tell_wants", nothing, SUSPENDED),  # a publisher that is deaf
    ("covers", DESERTED, KnownWants, "_discard", forgets_nothing, HANDED),  # one that does not heed who has gone
    ("covers", "zeta", Rendezvous, "ask", asks_nobody, MISSED),
    ("covers", "3x12x2", Multicast, "_pass_on", nothing, MISSED),
    ("scribe", "zeta", Scribe, "_next_hops", no_children, MISSED),
    ("bayeux", "zeta", Bayeux, "_update_route", notes_nothing, MISSED),
    ("canmc", "zeta", Flooding, "_ways_on", nowhere, MISSED),
]


@pytest.mark.parametrize(("method", "pattern", "kind", "name", "broken", "words"), MUTATIONS)
def test_who_is_blind_or_silent_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    pattern: str,
    kind: type,
    name: str,
    broken: Callable[..., Any],
    words: str,
) -> None:
    nodes = 20 if pattern == "zeta" else None
    clusters = 3 if pattern == "3x12x2" else 1
    ideal = method == "adaptive"
    sound = trial(method, pattern, nodes=nodes, clusters=clusters, ideal=ideal)
    assert sound.complaints == []
    monkeypatch.setattr(kind, name, _handled_as(getattr(kind, name), broken))
    if words == SUSPENDED:
        monkeypatch.setattr(Effect, "tell", says_so_to_nobody)
    unsound = trial(method, pattern, nodes=nodes, clusters=clusters, ideal=ideal)
    assert any(words in complaint for complaint in unsound.complaints), unsound.complaints


def _handled_as(sound: Callable[..., Any], broken: Callable[..., Any]) -> Callable[..., Any]:
    """A handler is found by the mark that `handles` leaves."""

    def instead(*arguments: object) -> object:
        return broken(*arguments)

    vars(instead).update(vars(sound))
    return instead


@pytest.mark.parametrize("method", [name for name, kind in TRIAL_METHODS.items() if kind.entry.knows_demand])
def test_publishers_that_nobody_wants_were_told_so(method: str) -> None:
    report = trial(method, DESERTED)
    assert report.complaints == []
    assert (report.figures.suspended, report.figures.messages) == (30, 0)
    assert report.figures.build_messages > 30
    assert "3 topics without subscribers had one for a while before the trial, by messages" in report.notes


def test_fingers_that_led_to_visitors_are_learnt_again() -> None:
    report = trial("locality", "1x0x150", network="wan", clusters=3)
    assert report.complaints == []
    assert report.figures.suspended == 150


@pytest.mark.parametrize("method", [name for name, kind in TRIAL_METHODS.items() if kind.entry.knows_demand])
def test_so_were_those_of_a_network_that_grew(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[tuple[int, str], list[bool]] = {}
    listen = TrialBrokers._listen

    def note(brokers: TrialBrokers, broker: int) -> None:
        listen(brokers, broker)
        on_demand = brokers.methods[broker].on_demand

        def tell(topic: str, wanted: bool) -> None:
            told.setdefault((broker, topic), []).append(wanted)
            on_demand(topic, wanted)

        brokers.methods[broker].on_demand = tell

    monkeypatch.setattr(TrialBrokers, "_listen", note)
    report = trial(method, "4x0x3", faults="dup=0.05")
    assert report.complaints == []
    assert (report.figures.suspended, report.figures.messages) == (12, 0)
    assert len(told) == 12
    assert all(beliefs[0] and not beliefs[-1] for beliefs in told.values())


def test_the_tables_that_are_measured_were_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt, ideal = (trial("adaptive", "subs60", nodes=300, ideal=is_ideal) for is_ideal in (False, True))
    assert learnt.parameters["learn_s"] == 30
    assert ideal.parameters["learn_s"] is None
    assert learnt.figures.build_messages > 1000
    assert learnt.figures.hops_mean < 1.2 * ideal.figures.hops_mean
    monkeypatch.setattr(TableLearning, "learn", nothing_at_all)
    assert trial("adaptive", "subs60", nodes=300).figures.hops_mean > 2 * learnt.figures.hops_mean


def test_many_tables_are_laid_out_and_the_report_says_so() -> None:
    report = trial("adaptive", "delta", nodes=2_010, publications=10)
    assert report.parameters["learn_s"] is None
    assert any("laid out" in note and "--learn 30" in note for note in report.notes)


def test_introducers_are_brokers_that_are_in_the_overlay() -> None:
    kind = TRIAL_METHODS["adaptive"]
    assert isinstance(kind, LearningTables)
    sim = Simulator(1)
    members = (3, 17, 5, 11)
    cast = RoleAssignment(20, (Topic("t", members[:1], members[1:]),))
    methods = kind.lay_out(sim, cast, Options(learn_s=1.0))
    kind.begin_to_learn(sim, cast, methods)
    sim.run(1.0)
    for broker in members:
        overlay = getattr(methods[broker], "overlay", None)
        assert isinstance(overlay, FlexibleGraph)
        assert {overlay.introduce() for _ in range(100)} == {*members} - {broker}
