"""What a broker published last before it was destroyed: its mirror tells all others of it, and they fetch it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.missed_fetching import FoundBehind
from braidmq.braid.catch_up.reconcile import AskMissed, Missed
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.sites import payloads
from tests.conformance.pair import V5, persistent

OLD = 0


@pytest.mark.parametrize("moves", [False, True])
def test_what_others_have_not_heard_of_comes_soon(tmp_path: Path, moves: bool) -> None:
    """The broker is destroyed right after a cut, and another one starts at its address; only its mirror knows."""
    sites = FaultySites(tmp_path, 5, seed=1, unreliable=False)
    sites.run(5)
    own, identity = sites[OLD].braid.mirrors.own, sites[OLD].braid.identity
    assert own is not None
    (mirror,) = own.mirrors
    away, other = [one for one in range(sites.count) if one not in (OLD, mirror)][:2]
    ada = sites.client(away, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 1)
    pairs = {(OLD, one) for one in range(sites.count) if one not in (OLD, mirror)}
    sites.cut(pairs | {(b, a) for a, b in pairs})
    assert sites.client(OLD, "publisher").publish("tide", b"0", 1) == 0
    sites.mend(set(sites.cuts.now))
    sites.destroy(OLD)
    sites.run(0.5)
    sites.start(OLD)
    if moves:
        ada.drop()
        ada = sites.client(other, "ada", version=V5, **persistent(V5))
        assert ada.connack is not None
        assert ada.connack.session_present
    sites.run(5)
    assert payloads(ada) == [b"0"]
    asked = AskMissed(identity, 0, 0.0, (), b"digest", ("tide",))
    answer = sites[int(mirror)].braid.catch_up.reconciler.on_ask_missed(away, asked)
    assert isinstance(answer, Missed)
    assert answer.is_copy


def test_one_that_does_not_have_a_history_says_so(tmp_path: Path) -> None:
    sites = FaultySites(tmp_path, 2, seed=1, unreliable=False)
    asked = AskMissed("gone#1", 7, 0.0, (), b"digest", ("tide",))
    answer = sites[1].braid.catch_up.reconciler.on_ask_missed(0, asked)
    assert isinstance(answer, Missed)
    assert answer.is_elsewhere


def test_an_origin_of_which_nothing_has_come_is_asked_where_it_says_that_it_is(tmp_path: Path) -> None:
    sites = FaultySites(tmp_path, 3, seed=1, unreliable=False)
    sites.client(2, "other").subscribe("tide", 1)
    assert sites.client(0, "publisher").publish("tide", b"0", 1) == 0
    origin = sites[0].braid.identity
    assert sites[1].braid.catch_up.cursors.get(origin) is None
    fetcher = sites[1].braid.catch_up.missed_fetcher
    answers: list[FoundBehind] = []

    async def ask() -> None:
        answers.append(await fetcher.fetch_behind(["tide"], {origin: SavedCursor("", 0, 0.0, [])}))

    sites[1].host.spawn(ask())
    sites.run(1)
    assert [one.silent for one in answers] == [[]]
    assert [one.copied for one in answers] == [[]]
    assert [sent.offset for _, sent in answers[0].found] == [1]
