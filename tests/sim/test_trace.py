"""Traces: lines to read, digests to compare, a picture to look at."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from braidmq.host import Address, CallTimeout, Message, Reply, Service, handles
from braidmq.sim.engine import SimHost, Simulator
from braidmq.sim.network import Constant, Network
from braidmq.sim.trace import Trace

SVG = "{http://www.w3.org/2000/svg}"


class Ask(Message):
    text: str


class Told(Message):
    text: str
    odd: frozenset[str] = frozenset()


class Node(Service):
    def __init__(self, host: SimHost) -> None:
        self.host = host
        host.serve(self)

    @handles(Ask)
    def on_ask(self, origin: Address, ask: Ask) -> Reply:
        return Told(ask.text.upper(), frozenset({"x", "y", "z"}))

    async def ask(self, to: Address, text: str) -> None:
        try:
            await self.host.call(to, Ask(text), 0.5)
        except CallTimeout:
            return


class Swallow(Network):
    """Loses what goes to host 9, sends twice what goes to host 2."""

    def delays(self, chance: object, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return () if to == 9 else (0.01, 0.01) if to == 2 else (0.01,)


def world(network: Network | None = None, **bounds: int) -> tuple[Simulator, list[Node], Trace]:
    sim = Simulator(1, network or Constant(0.01))
    nodes = [Node(sim.host(number)) for number in range(12)]
    return sim, nodes, Trace(sim, **bounds)


def test_a_line_for_each_journey() -> None:
    sim, nodes, trace = world(Swallow())
    nodes[0].host.spawn(nodes[0].ask(11, "who <are> you"))
    sim.run()
    nodes[1].host.send(9, Told("into the void"))
    nodes[1].host.send(2, Told("twice"))
    nodes[3].host.crash()
    nodes[1].host.send(3, Ask("x" * 100))
    sim.run()
    nodes[1].host.send(4, Told("soon"))
    lines = str(trace).splitlines()
    assert lines[:5] == [
        "    0.000000      0.010000   0 → 11  hop 1   Ask(text='who <are> you')",
        lines[1],
        "    0.020000          lost   1 → 9   hop 1   Told(text='into the void', odd=frozenset())",
        "    0.020000      0.030000   1 → 2   hop 1   Told(text='twice', odd=frozenset())",
        "    0.020000      0.030000   1 → 2   hop 1   Told(text='twice', odd=frozenset())",
    ]
    assert lines[1].startswith(
        "    0.010000      0.020000  11 → 0   reply   Told(text='WHO <ARE> YOU', odd=frozenset({"
    )
    assert lines[5].startswith("    0.020000  nobody there   1 → 3   hop 1   Ask(text='xxx")
    assert lines[5].endswith("x…")
    assert lines[6].startswith("    0.030000     under way   1 → 4 ")
    assert trace.count == len(lines) == 7


def test_the_oldest_leave_and_the_digest_remembers_them() -> None:
    def digest(first: str, journeys_max: int) -> str:
        sim, nodes, trace = world(journeys_max=journeys_max)
        for text in (first, "b", "c", "d"):
            nodes[0].host.send(1, Told(text))
        sim.run()
        assert len(trace.journeys) == min(4, journeys_max)
        if journeys_max == 2:
            assert next(trace.lines()) == "… 2 earlier journeys are no longer kept"
        return trace.digest()

    assert digest("a", 2) == digest("a", 100)
    assert digest("a", 2) != digest("other", 2)


def test_who_listened_before_still_hears_and_a_trace_can_stop() -> None:
    sim = Simulator(1)
    nodes = [Node(sim.host(number)) for number in range(2)]
    heard: list[Message] = []
    sim.on_message = lambda sender, to, message, hops: heard.append(message)
    first = Trace(sim)
    second = Trace(sim)
    nodes[0].host.send(1, Told("a"))
    sim.run()
    with pytest.raises(ValueError, match="began later"):
        first.stop()
    second.stop()
    first.stop()
    nodes[0].host.send(1, Told("b"))
    sim.run()
    assert heard == [Told("a"), Told("b")]
    assert (first.count, second.count) == (1, 1)
    assert first.digest() == second.digest()


def test_messages_to_the_dead_are_not_remembered_for_ever() -> None:
    sim, nodes, trace = world(journeys_max=10)
    nodes[1].host.crash()
    for second in range(5000):
        sim.at(second, lambda: nodes[0].host.send(1, Told("hello?")))
    sim.run()
    assert trace.count == 5000
    assert len(trace._under_way) < 1100


def test_a_number_beyond_the_wire_is_no_obstacle() -> None:
    class Big(Message):
        number: int

    _, nodes, trace = world()
    before = trace.digest()
    nodes[0].host.send(1, Big(2**100))
    assert trace.digest() != before


def test_the_picture_shows_hosts_arrows_losses_and_words() -> None:
    sim, nodes, trace = world(Swallow())
    nodes[0].host.spawn(nodes[0].ask(11, "who <are> you"))
    nodes[5].host.send(9, Told("lost"))
    nodes[5].host.send(5, Told("to myself"))
    sim.run()
    root = ElementTree.fromstring(trace.svg(title="Asked & answered"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[0] == "Asked & answered"
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "host"] == ["0", "5", "9", "11"]
    ways = [path.get("class", "") for group in root.iter(f"{SVG}g") for path in group if path.get("class")]
    assert sorted(ways) == ["way", "way", "way lost", "way reply"]
    assert {"Ask", "Told", "a reply", "lost", "20 ms"} <= set(texts)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert any("who <are> you" in title for title in titles)


def test_the_picture_of_a_choice() -> None:
    sim, nodes, trace = world()
    for node in nodes[1:]:
        node.host.send(0, Told(f"from {node.host.address}"))
    sim.run()
    root = ElementTree.fromstring(trace.svg(only=lambda journey: journey.sender in (4, 2), hosts=[4, 0, 2]))
    assert [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "host"] == ["4", "0", "2"]
    assert len(list(root.iter(f"{SVG}g"))) == 2


def test_what_cannot_be_drawn_is_told() -> None:
    _, nodes, trace = world()
    with pytest.raises(ValueError, match="nothing to draw"):
        trace.svg()
    for _ in range(1001):
        nodes[0].host.send(1, Told("a"))
    with pytest.raises(ValueError, match="1001 messages cannot be told apart"):
        trace.svg()
    _, nodes, trace = world()
    for number in range(100, 200):
        nodes[0].host.send(number, Told("a"))
    with pytest.raises(ValueError, match="101 hosts do not fit"):
        trace.svg()
