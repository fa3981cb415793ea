"""The ledger as it is, without messages: singles, windows, and answers that overtake each other."""

from __future__ import annotations

from braidmq.overlay.peers import Peer
from braidmq.select.forecast import HORIZON_S, Forecast
from braidmq.select.group import ComponentGroup
from braidmq.select.ledger import SUSPECTED_S, Ledger
from braidmq.select.member import Report
from braidmq.select.messages import Visit, Window
from braidmq.select.request import Need, SelectionRequest

GROUP = ComponentGroup("c1", "edge1")
ANY = SelectionRequest("r", GROUP, 60.0)


def peer(number: int) -> Peer:
    return Peer(GROUP.key(f"b{number:02}"), number)


def report(number: int, free: int, version: int = 1, **attributes: float) -> Report:
    return Report(peer(number), free, (0, version), attributes)


def window(number: int, until: int, count: int) -> Window:
    return Window(peer(number), peer(until).key, count)


def chosen(ledger: Ledger, request: SelectionRequest = ANY, tried: tuple[int, ...] = ()) -> int | None:
    found = ledger.pick(request, 0.0, [peer(number).key for number in tried])
    return None if found is None else int(found.owner.address)


def test_the_fullest_window_is_divided_by_what_its_first_member_answers() -> None:
    ledger = Ledger(GROUP, [window(1, 2, 1), window(2, 4, 2), window(4, 8, 4)])
    assert chosen(ledger) == 4
    ledger.learn([Visit(report(4, 0), (window(5, 6, 1), window(6, 8, 2)))], 0.0)
    assert sorted(ledger.windows) == [peer(number).key for number in (1, 2, 5, 6)]
    assert ledger.free == 1 + 2 + 1 + 2


def test_two_requests_at_the_same_time_do_not_meet() -> None:
    ledger = Ledger(GROUP, [window(1, 2, 1), window(2, 3, 1)])
    first = ledger.pick(ANY, 0.0, ())
    assert first is not None
    ledger.sent(first)
    assert chosen(ledger) != int(first.owner.address)
    ledger.hear(report(5, 1), 0.0)
    alone = ledger.pick(ANY, 0.0, ())
    assert alone is not None
    assert alone.owner == peer(5)
    ledger.sent(alone)
    assert chosen(ledger) != 5
    ledger.returned(alone)
    assert chosen(ledger) == 5


def test_an_older_word_does_not_overwrite_a_newer_one() -> None:
    ledger = Ledger(GROUP, [])
    ledger.hear(report(3, 2, version=7), 0.0)
    ledger.hear(report(3, 0, version=6), 0.0)
    assert ledger.free == 2
    ledger.hear(report(3, 0, version=8), 0.0)
    assert ledger.free == 0
    assert chosen(ledger) is None


def test_the_latest_single_comes_first_and_the_best_where_there_is_a_score() -> None:
    ledger = Ledger(GROUP, [])
    for number, cpu in ((1, 50.0), (2, 10.0), (3, 90.0)):
        ledger.hear(report(number, 1, cpu=cpu), 0.0)
    assert chosen(ledger) == 3
    assert chosen(ledger, SelectionRequest("r", GROUP, 60.0, score=(("cpu", 1.0),))) == 2
    assert chosen(ledger, SelectionRequest("r", GROUP, 60.0, (Need("cpu", "<=", 60.0),))) == 2
    assert chosen(ledger, SelectionRequest("r", GROUP, 60.0, (Need("gpu", ">=", 1.0),))) is None
    assert chosen(ledger, tried=(3, 2)) == 1


def test_those_that_have_not_been_heard_of_for_longest_are_audited() -> None:
    ledger = Ledger(GROUP, [window(9, 10, 0)])
    for number in (1, 2, 3):
        ledger.hear(report(number, 0), 0.0)
    ledger.hear(report(1, 0, version=2), 0.0)
    assert [int(one.owner.address) for one in ledger.oldest(3, 5.0, ())] == [9, 2, 3]


def test_a_silent_member_is_passed_over_for_a_while() -> None:
    ledger = Ledger(GROUP, [])
    ledger.hear(report(1, 1), 0.0)
    found = ledger.pick(ANY, 0.0, ())
    assert found is not None
    ledger.suspect(found, 0.0)
    assert ledger.pick(ANY, 1.0, ()) is None
    assert ledger.pick(ANY, SUSPECTED_S, ()) == found


def test_when_all_have_spoken_those_that_did_not_are_gone() -> None:
    ledger = Ledger(GROUP, [window(4, 8, 4)])
    ledger.hear(report(1, 3), 0.0)
    ledger.replace_all([report(2, 1), report(3, 0)], 0.0)
    assert (sorted(ledger.singles), ledger.windows) == ([peer(2).key, peer(3).key], {})
    assert ledger.free == 1


def test_a_shortage_is_seen_before_it_is_there() -> None:
    falling, steady, slow = Forecast(), Forecast(), Forecast()
    for number in range(10):
        falling.note(10.0 * number, 40 - 2 * number)
        steady.note(10.0 * number, 40)
        slow.note(10.0 * number, 4_000 - number)
    expected = falling.shortage_in_s(90.0)
    assert expected is not None
    assert abs(expected - 110.0) < 1e-6, "22 are left, 2 go every 10 s"
    assert steady.shortage_in_s(90.0) is None
    assert slow.shortage_in_s(90.0) is None, f"not within {HORIZON_S} s"
    assert Forecast().shortage_in_s(0.0) is None
