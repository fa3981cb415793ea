"""Aggregates of components over Suzaku: cut to what is asked for, told at once or with updates, by plain tables."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.host import Address, Message
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay.aggregates import label_of, merged
from braidmq.overlay.suzaku import PERIOD_S, Suzaku, Update, Updated
from braidmq.overlay.suzaku.messages import Revised
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.suzaku import lay_out_suzaku, lay_out_totals

CLUSTERS = ("edge1", "edge2", "edge3", "edge4")
SEGMENTS = {cluster: segment("c1", Role.SUBSCRIBER, cluster) for cluster in CLUSTERS}
Free = dict[Key, int]


def label_at(key: Key) -> str:
    return next(label_of("c1", cluster) for cluster, (low, high) in SEGMENTS.items() if low <= key < high)


def cut(mine: Key, theirs: Key) -> tuple[str, ...]:
    """The own group's label, of ranges that begin in the own group."""
    return (label_at(mine),) if label_at(mine) == label_at(theirs) else ()


def laid_out(members: int = 8, *, is_cut: bool = False, plain: bool = False) -> tuple[Simulator, list[Suzaku], Free]:
    """Four groups of so many members with a free component each, whose tables know it, and go on learning."""
    sim = Simulator(1)
    keys: dict[Address, list[Key]] = {
        number: [key_of("c1", Role.SUBSCRIBER, CLUSTERS[number % 4], f"b{number:03}")] for number in range(4 * members)
    }
    free: Free = {key: 1 for some in keys.values() for key in some}
    overlays = lay_out_suzaku(sim, keys, plain=plain)
    for overlay in overlays.values():
        overlay.value = lambda key: {label_at(key): free[key]}
        overlay.labels = cut if is_cut else None
    lay_out_totals(sim, overlays)
    for overlay in overlays.values():
        for node in overlay.nodes.values():
            overlay.host.spawn(node.keep_learning())
    return sim, list(overlays.values()), free


def known_free(overlay: Suzaku, label: str) -> int:
    """What the first node of a broker knows of a group, itself and all its forward fingers added up."""
    node = next(iter(overlay.nodes.values()))
    fingers = [node.finger(level, True) for level in range(len(node.forward) + 1)]
    parts = [finger.total.aggregate for finger in fingers if finger is not None and finger.total is not None]
    found = merged([node.value(), *parts]).get(label, 0)
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_changed_value_travels_with_the_updates(is_cut: bool) -> None:
    sim, overlays, free = laid_out(is_cut=is_cut)
    first = min(free)
    delegate = next(overlay for overlay in overlays if first in overlay.nodes)
    assert known_free(delegate, label_at(first)) == 8
    for key in sorted(free)[2:5]:
        free[key] = 0
    assert known_free(delegate, label_at(first)) == 8, "nothing is known before it is told"
    sim.run(40 * PERIOD_S)
    assert known_free(delegate, label_at(first)) == 5


def test_only_the_own_label_is_told_and_only_within_the_group() -> None:
    sim, _, free = laid_out(is_cut=True)
    told: list[tuple[Key, Key, Message]] = []

    def look(sender: Address, to: Address, message: Message, _hops: int, _delays: tuple[float, ...]) -> None:
        if isinstance(message, Update):
            told.append((message.asker.key, message.to, message))
            for total in (message.total,):
                if total is not None:
                    assert message.labels == (label_at(message.to),) == (label_at(message.asker.key),)
                    assert len(total.values) == 1
            if label_at(message.asker.key) != label_at(message.to):
                assert message.total is None
                assert message.labels == ()

    sim.on_send = look
    sim.run(10 * PERIOD_S)
    assert any(message.total is not None for _, _, message in told if isinstance(message, Update))
    assert {asker for asker, _, _ in told} == {*free}


def update_bytes(is_cut: bool, has_values: bool = True) -> int:
    sim, overlays, _ = laid_out(16, is_cut=is_cut)
    if not has_values:
        for overlay in overlays:
            overlay.value = overlay.labels = None
    sizes: list[int] = []

    def look(_sender: Address, _to: Address, message: Message, hops: int, _delays: tuple[float, ...]) -> None:
        sizes.append(len(msgspec.msgpack.encode((0, hops, message))))

    sim.on_send = look
    sim.run(12 * PERIOD_S)
    return sum(sizes)


def test_cut_aggregates_take_fewer_bytes_than_whole_ones() -> None:
    assert update_bytes(is_cut=False, has_values=False) < update_bytes(is_cut=True) < update_bytes(is_cut=False)


def test_a_change_that_is_told_at_once_is_known_to_those_that_point_here() -> None:
    sim, overlays, free = laid_out(is_cut=True)
    revised: list[Revised] = []

    def look(_sender: Address, _to: Address, message: Message, _hops: int, _delays: tuple[float, ...]) -> None:
        if isinstance(message, Revised):
            revised.append(message)

    sim.on_send = look
    keys = sorted(free)[:8]
    delegate = next(overlay for overlay in overlays if keys[0] in overlay.nodes)
    changed = next(overlay for overlay in overlays if keys[4] in overlay.nodes)
    free[keys[4]] = 0
    for _ in range(100):
        changed.revise(keys[4])
    sim.run(0.5)
    assert known_free(delegate, label_at(keys[0])) == 7
    assert 0 < len(revised) <= 2 * 5, "each that points here, once, however often it changes"


def test_plain_tables_route_by_fingers_and_links_alone() -> None:
    for plain in (True, False):
        sim, overlays, _ = laid_out(plain=plain)
        sim.run(1.0)
        node = next(iter(overlays[0].nodes.values()))
        fingers = {node.link.left.key, node.link.right.key}
        fingers |= {finger.peer.key for finger in (*node.forward, *node.backward)}
        known = {entry.peer.key for entry in overlays[0].view.entries}
        assert (known == fingers) == plain
        assert fingers <= known


def test_updates_still_carry_backups_where_routing_is_plain() -> None:
    sim, _, _ = laid_out(plain=True)
    answers: list[Updated] = []
    sim.on_message = lambda _s, _t, message, _h: answers.append(message) if isinstance(message, Updated) else None
    sim.run(2 * PERIOD_S)
    assert answers
    assert all(answer.backups for answer in answers)


def test_a_label_has_a_reducer_that_is_known() -> None:
    assert label_of("c1", "edge1", "min", "cpu") == "c1|edge1|cpu:min"
    with pytest.raises(ValueError, match="no reducer 'mean'"):
        label_of("c1", "edge1", "mean")
