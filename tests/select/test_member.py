"""A member: what is reserved is decided there, once, whoever asks and however often."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.overlay.peers import Peer
from braidmq.select import member as members
from braidmq.select.group import ComponentGroup, group_at, steps_between
from braidmq.select.member import FIRST_LEASE_S, Component, Member
from braidmq.select.request import LEASE_MAX_S, Need, SelectionRequest, free_in, may_hold, problem_of

GROUP = ComponentGroup("c1", "cloud1/edge1")
ME = Peer(GROUP.key("b1"), 1)


def member(*components: Component, resting_until: float = 0.0) -> Member:
    one = Member(GROUP, ME.key, 7, resting_until)
    for component in components:
        one.add(component)
    return one


def request(name: str = "r1", lease_s: float = 600.0, **more: Any) -> SelectionRequest:
    return SelectionRequest(name, GROUP, lease_s, **more)


def test_the_same_request_twice_is_one_reservation() -> None:
    one = member(Component("a", 2))
    first, again = (one.take(request(), ME, now) for now in (0.0, 1.0))
    assert first is not None
    assert first == again
    assert one.free(1.0) == 1


def test_a_slot_is_given_once() -> None:
    one = member(Component("a"), Component("b"))
    taken = [one.take(request(f"r{number}"), ME, 0.0) for number in range(3)]
    assert [reservation and reservation.component for reservation in taken] == ["a", "b", None]


def test_what_nobody_renews_is_soon_free_again_and_what_is_renewed_is_not() -> None:
    one = member(Component("a", 2))
    lost, kept = (one.take(request(name), ME, 0.0, notify=9) for name in ("lost", "kept"))
    assert lost is not None
    assert kept is not None
    assert one.renew("kept", kept.fence, FIRST_LEASE_S / 2) == 600.0
    assert one.expire(FIRST_LEASE_S) == [9]
    assert one.free(FIRST_LEASE_S) == 1
    assert one.renew("lost", lost.fence, FIRST_LEASE_S) is None
    assert one.expire(FIRST_LEASE_S / 2 + 600.0) == [9]
    assert one.free(700.0) == 2


def test_an_old_fencing_number_changes_nothing() -> None:
    one = member(Component("a"))
    first = one.take(request(), ME, 0.0)
    assert first is not None
    one.release("r1", first.fence)
    second = one.take(request(), ME, 1.0)
    assert second is not None
    assert second.fence > first.fence
    assert one.release("r1", first.fence) is None
    assert one.renew("r1", first.fence, 2.0) is None
    assert one.free(2.0) == 0


def test_one_that_has_forgotten_rests_until_the_longest_lease_is_over() -> None:
    one = member(Component("a"), resting_until=30.0)
    before = one.report(ME, 29.0)
    assert one.take(request(), ME, 29.0) is None
    one.rested()
    after = one.report(ME, 30.0)
    assert (before.free, after.free) == (0, 1)
    assert after.version > before.version
    assert one.take(request(), ME, 30.0) is not None


def test_conditions_and_the_score_choose_the_component() -> None:
    busy = Component("busy", 1, {"cpu": 90.0, "memory": 4096.0})
    calm = Component("calm", 1, {"cpu": 10.0, "memory": 512.0})
    silent = Component("silent", 1)
    one = member(silent, busy, calm)

    def chosen(**more: Any) -> str | None:
        found = one.fits(request(**more), 0.0)
        return None if found is None else found.name

    assert chosen() == "silent"
    assert chosen(score=(("cpu", 1.0),)) == "calm"
    assert chosen(needs=(Need("memory", ">=", 1024.0),)) == "busy"
    assert chosen(needs=(Need("cpu", "<=", 50.0), Need("memory", ">=", 1024.0))) is None
    assert chosen(needs=(Need("slots", ">=", 2.0),)) is None
    assert chosen(score=(("cpu", 1.0), ("memory", -1.0))) == "busy"


def test_aggregates_rule_out_ranges_that_cannot_meet_a_condition() -> None:
    value = member(Component("a", 2, {"cpu": 40.0}), Component("b", 1, {"cpu": 80.0})).value(0.0)
    assert value == {"c1|cloud1/edge1:sum": 3, "c1|cloud1/edge1|cpu:min": 40.0, "c1|cloud1/edge1|cpu:max": 80.0}
    assert free_in(request(needs=(Need("cpu", "<=", 50.0),)), value) == 3
    assert free_in(request(needs=(Need("cpu", "<=", 30.0),)), value) == 0
    assert may_hold(request(needs=(Need("memory", ">=", 1.0),)), value), "what is not known may be so"


def test_a_component_that_is_gone_takes_its_reservations_with_it() -> None:
    one = member(Component("a", 2), Component("b"))
    one.take(request("r1"), ME, 0.0)
    assert one.remove("a") == ["r1"]
    assert one.free(0.0) == 1
    assert one.holds("r1") is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (request(lease_s=LEASE_MAX_S * 365), "a lease of"),
        (request(lease_s=float("nan")), "a lease of nan"),
        (request(needs=(Need("cpu", "==", 1.0),)), "a condition by '=='"),
        (request(needs=(Need("cpu", "<=", float("nan")),)), "no number to compare with"),
        (request(needs=(Need("cpu", "<=", 1.0),) * 17), "at most 16"),
        (request(score=(("cpu", float("inf")),)), "a weight"),
    ],
)
def test_requests_that_make_no_sense_are_told_why(wrong: SelectionRequest, words: str) -> None:
    assert words in str(problem_of(wrong))
    assert problem_of(request(needs=(Need("cpu", "<=", 1.0),), score=(("steps", 1.0),))) is None


def test_a_broker_has_so_many_components_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "COMPONENTS_MAX", 2)
    one = member(Component("a"), Component("b"))
    with pytest.raises(ValueError, match="the most at one broker"):
        one.add(Component("c"))


def test_groups_are_known_by_their_keys() -> None:
    assert group_at(GROUP.key("b1")) == GROUP
    assert group_at(b"no key") is None
    low, high = GROUP.keys
    assert low <= GROUP.key("b1") < high
    assert not low <= ComponentGroup("c1", "cloud1/edge2").key("b1") < high
    assert [steps_between("cloud1/edge1", other) for other in ("cloud1/edge1", "cloud1", "cloud1/edge2", "")] == [
        0, 1, 2, 2
    ]  # fmt: skip
