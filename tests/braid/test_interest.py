"""What clients want, as a set that may be large: what is in it, what it is named by, who waits for it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.braid.catch_up.wanted_sets import HASHES_MAX, SETS_MAX, TellWanted, WantedSet, WantedSets, pack, set_of
from braidmq.braid.interest.announcing import FilterAnnouncer
from braidmq.braid.interest.client_filters import CHANGES_MAX, ClientFilters
from braidmq.braid.interest.covering import CoveringFilters
from braidmq.braid.interest.effect_waits import SUBSCRIBE_WAIT_S, EffectWaits
from braidmq.braid.membership.presence import Presence
from braidmq.host import Event
from braidmq.mqtt.topics import covers, matches
from braidmq.pubsub.covers.filter_pages import hash_of
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant

EXAMPLES = settings(max_examples=100, deadline=None, print_blob=True)
levels = st.sampled_from(["", "a", "b", "$a"])
topics = st.lists(levels, min_size=1, max_size=3).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=3), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0]))
    .filter(bool)
)
steps = st.lists(st.tuples(st.booleans(), filters), max_size=20)


# The set


@given(steps, st.lists(topics, min_size=1, max_size=5))
@EXAMPLES
def test_the_filters_of_a_topic_are_found_by_their_shapes(changes: list[tuple[bool, str]], asked: list[str]) -> None:
    known, should = ClientFilters(), dict[str, float]()
    for at, (is_added, topic_filter) in enumerate(changes):
        if is_added:
            known.add(topic_filter, at)
            should.setdefault(topic_filter, at)
        else:
            known.discard(topic_filter)
            should.pop(topic_filter, None)
    assert list(known) == list(should)
    for topic in asked:
        assert sorted(known.matching(topic)) == sorted(one for one in should if matches(one, topic))
        for at in range(0, len(changes), 5):
            assert known.wanted(topic, at) == any(since <= at for one, since in should.items() if matches(one, topic))


@given(steps, steps)
@EXAMPLES
def test_a_set_and_its_changes_are_the_set_that_it_became(
    before: list[tuple[bool, str]], later: list[tuple[bool, str]]
) -> None:
    known = ClientFilters()
    for is_added, topic_filter in before:
        known.add(topic_filter, 0.0) if is_added else known.discard(topic_filter)
    version, digest, told = known.version, known.digest, set_of(known.digest, list(known))
    for is_added, topic_filter in later:
        known.add(topic_filter, 0.0) if is_added else known.discard(topic_filter)
    changes = known.changes_since(version)
    assert changes is not None
    told = told.changed(
        TellWanted(known.digest, digest, tuple(known.shapes), pack(changes.added), pack(changes.removed))
    )
    assert len(told) == len(known)
    assert all(told.wants(topic) == any(known.matching(topic)) for topic in ["a", "b", "a/b", "$a", "/a", "a/b/a"])
    other = ClientFilters()
    for topic_filter in sorted(known):
        other.add(topic_filter, 7.0)
    assert other.digest == known.digest


def test_a_digest_names_one_set() -> None:
    known = ClientFilters()
    digests = {known.digest}
    for number in range(100):
        known.add(f"a/{number}", 0.0)
        digests.add(known.digest)
    assert len(digests) == 101
    for number in range(100):
        known.discard(f"a/{number}")
    assert known.digest == ClientFilters().digest


def test_changes_of_long_ago_are_not_known_any_more() -> None:
    known = ClientFilters()
    for number in range(CHANGES_MAX + 1):
        known.add(f"a/{number}", 0.0)
    assert known.changes_since(0) is None
    changes = known.changes_since(1)
    assert changes is not None
    assert len(changes.added) == CHANGES_MAX


# What other brokers want


def test_sets_of_many_brokers_stay_within_the_bound() -> None:
    sets = WantedSets()
    many = range(HASHES_MAX // 8)
    for asker in range(9):
        sets.put(asker, WantedSet(b"%d" % asker, (), many))
    assert [sets.digest_of(asker) for asker in range(3)] == [b"", b"1", b"2"]
    for asker in range(9, 9 + SETS_MAX):
        sets.put(asker, WantedSet(b"few", (), [hash_of("a")]))
    assert sets.digest_of(8) == b""
    assert sets.get(9, b"few") is not None
    assert sets.get(9, b"other") is None


def test_a_change_of_what_is_not_known_is_not_taken() -> None:
    sets = WantedSets()
    assert not sets.change(1, TellWanted(b"new", b"old", (), pack([1]), b""))
    assert sets.change(1, TellWanted(b"old", b"", ("+",), pack([hash_of("a"), hash_of("+")]), b""))
    assert sets.change(1, TellWanted(b"new", b"old", (), b"", pack([hash_of("+")])))
    known = sets.get(1, b"new")
    assert known is not None
    assert known.wants("a")
    assert not known.wants("b")


# The fewest filters that cover all


@given(steps)
@EXAMPLES
def test_what_is_announced_are_the_filters_that_no_other_covers(changes: list[tuple[bool, str]]) -> None:
    covering = CoveringFilters()
    wanted: dict[str, None] = {}
    announced: dict[str, None] = {}
    for is_added, topic_filter in changes:
        if is_added == (topic_filter in wanted):
            continue
        if is_added:
            wanted[topic_filter] = None
            begun, ended = covering.add(topic_filter)
        else:
            del wanted[topic_filter]
            begun, ended = covering.discard(topic_filter)
        for one in ended:
            del announced[one]
        assert not {*begun} & {*announced}
        announced.update(dict.fromkeys(begun))
        assert {*announced} == {*covering.announced} <= {*wanted}
        assert all(sum(covers(one, each) for one in announced) == 1 for each in announced)
        for one in wanted:
            found = covering.announced_for(one)
            assert found in announced
            assert covers(found, one)


# Waiting for it


def test_who_waits_for_one_filter_is_not_looked_at_for_another() -> None:
    sim = Simulator(1, Constant(0.01))
    asked: list[str] = []
    pending = {f"a/{number}": f"a/{number}" for number in range(1000)}

    def find(topic_filter: str) -> str | None:
        asked.append(topic_filter)
        return pending.get(topic_filter)

    waits = EffectWaits(sim.host(0), find)
    done: list[str] = []
    for topic_filter in pending:
        waits.when_effective([topic_filter], _noting(done, topic_filter))
    sim.run(0.5)
    asked.clear()
    for topic_filter in list(pending):
        del pending[topic_filter]
        waits.on_effective(topic_filter)
    sim.run(0.6)
    assert len(done) == len(asked) == 1000


def test_a_wait_for_several_ends_with_the_last_of_them_or_in_time() -> None:
    sim = Simulator(1, Constant(0.01))
    pending = {"a": "a", "b": "#", "c": "c"}
    waits = EffectWaits(sim.host(0), pending.get)
    done: list[str] = []
    waits.when_effective(["a", "b"], _noting(done, "both"))
    waits.when_effective(["c"], _noting(done, "late"))
    waits.when_effective(["d"], _noting(done, "at once"))
    assert done == ["at once"]
    sim.run(0.5)
    del pending["b"]
    waits.on_effective("#")
    pending["a"] = "+"  # another filter covers it by now
    waits.on_effective("a")
    sim.run(1.0)
    assert done == ["at once"]
    del pending["a"]
    waits.on_effective("+")
    sim.run(1.5)
    assert done == ["at once", "both"]
    sim.run(SUBSCRIBE_WAIT_S + 0.1)
    assert done == ["at once", "both", "late"]


def _noting(done: list[str], text: str) -> Callable[[], None]:
    return lambda: done.append(text)


# Told as it is


class Slow:
    """A method that takes its time for each filter, and notes what it is told."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.calls: list[tuple[str, str]] = []
        self.under_way: dict[str, Event] = {}
        self.most = 0

    async def subscribe(self, topic_filter: str) -> None:
        await self._take("+", topic_filter)

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._take("-", topic_filter)

    async def _take(self, what: str, topic_filter: str) -> None:
        assert topic_filter not in self.under_way, "one step after the other"
        self.calls.append((what, topic_filter))
        self.under_way[topic_filter] = done = self.sim.hosts[0].event()
        self.most = max(self.most, len(self.under_way))
        await done.wait(1.0)
        del self.under_way[topic_filter]


class Scene:
    def __init__(self, *before: str) -> None:
        self.sim = Simulator(1, Constant(0.01))
        self.host = self.sim.host(0)
        self.method = Slow(self.sim)
        self.filters = ClientFilters()
        self.presence = Presence(self.host)
        self.announcer = FilterAnnouncer(self.host, self.method, self.presence, self.filters)  # type: ignore[arg-type]
        for topic_filter in before:
            self.want(topic_filter)

    def enter(self) -> None:
        self.presence.enter()
        self.announcer.enter()

    def want(self, topic_filter: str) -> None:
        self.filters.add(topic_filter, 0.0)
        self.announcer.on_filter(topic_filter, True)

    def want_no_more(self, topic_filter: str) -> None:
        self.filters.discard(topic_filter)
        self.announcer.on_filter(topic_filter, False)


def test_all_that_sessions_from_before_want_is_told_on_entering() -> None:
    names = [f"cmd/{number}/#" for number in range(2000)]
    scene = Scene(*names)
    assert not scene.method.calls
    scene.enter()
    assert scene.announcer.pending(names[-1]) == names[-1]
    scene.sim.run(3)
    assert sorted(scene.method.calls) == sorted(("+", name) for name in names)
    assert scene.method.most > 1000, "they wait beside each other"
    assert scene.announcer.pending(names[-1]) is None


def test_a_filter_that_goes_and_comes_again_at_once_costs_nothing() -> None:
    scene = Scene("a")
    scene.enter()
    scene.sim.run(3)
    scene.want_no_more("a")
    scene.want("a")
    scene.sim.run(6)
    assert scene.method.calls == [("+", "a")]
    assert scene.announcer.pending("a") is None


def test_a_filter_that_comes_goes_and_comes_is_told_one_step_after_the_other() -> None:
    scene = Scene()
    scene.enter()
    scene.want("a")
    scene.sim.run(0.5)
    scene.want_no_more("a")
    scene.sim.run(1.2)  # it has taken effect, and is being withdrawn
    assert scene.method.calls == [("+", "a"), ("-", "a")]
    assert scene.announcer.pending("a") is None, "nobody wants it"
    scene.want("a")
    assert scene.announcer.pending("a") == "a"
    scene.sim.run(2.5)
    assert scene.method.calls[2:] == [("+", "a")]
    assert scene.announcer.pending("a") == "a"
    scene.sim.run(4)
    assert scene.announcer.pending("a") is None
    scene.want_no_more("a")
    scene.sim.run(6)
    assert scene.method.calls[3:] == [("-", "a")]


def test_nothing_is_told_by_a_broker_that_leaves() -> None:
    scene = Scene()
    scene.enter()
    scene.presence.leave()
    scene.want("a")
    scene.sim.run(3)
    assert scene.method.calls == []
