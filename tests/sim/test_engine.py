"""Virtual time: order, lives, calls, cancelled procedures, failures that name their seed, and determinism."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from braidmq.host import Address, CallRefused, CallTimeout, Forward, Message, Reply, Service, handles
from braidmq.sim.engine import Constant, Network, SimHost, SimTask, SimulationError, Simulator
from braidmq.sim.network import Faults, Partition, Uniform
from braidmq.sim.task import EventWait
from braidmq.sim.timeline import Deadlines
from braidmq.sim.trace import Trace


class Ask(Message):
    number: int


class Told(Message):
    number: int


class Note(Message):
    text: str


class Pass(Message):
    to: int


class Unknown(Message):
    pass


class Node(Service):
    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.heard: list[tuple[float, Address, str]] = []
        host.serve(self)

    @handles(Ask)
    def on_ask(self, origin: Address, ask: Ask) -> Reply:
        return Told(ask.number + 1)

    @handles(Note)
    def on_note(self, origin: Address, note: Note) -> Reply:
        if note.text == "fail":
            raise KeyError("a bug")
        if note.text == "die":
            self.host.crash()
            self.host.send(origin, Note("from the grave"))
        self.heard.append((self.host.now(), origin, note.text))
        return None

    @handles(Pass)
    def on_pass(self, origin: Address, message: Pass) -> Reply:
        if message.to == self.host.address:
            return Forward(message.to, Ask(origin if isinstance(origin, int) else -1))
        return Forward(message.to)


def world(count: int = 3, seed: int = 7, network: Network | None = None) -> tuple[Simulator, list[Node]]:
    sim = Simulator(seed, network)
    return sim, [Node(sim.host(address)) for address in range(count)]


def ask(
    outcomes: list[Any], host: SimHost, to: Address, request: Message, timeout_s: float = 1.0
) -> Coroutine[Any, Any, None]:
    async def procedure() -> None:
        try:
            outcomes.append(await host.call(to, request, timeout_s))
        except (CallRefused, CallTimeout) as error:
            outcomes.append((host.now(), type(error)))

    return procedure()


class Later(Network):
    """Each message sent takes the next of the given times."""

    def __init__(self, *delays: tuple[float, ...]) -> None:
        self.left = list(delays)

    def delays(self, chance: object, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self.left.pop(0)


# Order


def test_what_is_of_the_same_time_happens_in_the_order_of_its_making() -> None:
    sim = Simulator(1)
    happened: list[str] = []
    for when, name in ((2.0, "d"), (1.0, "a"), (1.0, "b"), (2.0, "e"), (1.5, "c")):
        sim.at(when, lambda name=name: happened.append(name))  # type: ignore[misc]
    sim.at(1.0, lambda: sim.at(1.0, lambda: happened.append("b, made later")))
    sim.run()
    assert happened == ["a", "b", "b, made later", "c", "d", "e"]


def test_random_times_happen_in_order_also_when_added_on_the_way() -> None:
    sim = Simulator(3)
    seen: list[float] = []

    def act() -> None:
        seen.append(sim.now)
        if len(seen) < 3000:
            sim.at(sim.now + sim.chance.choice([0.0, 1e-5, sim.chance.random() * 0.01, sim.chance.random() * 50]), act)

    for _ in range(100):
        sim.at(sim.chance.random(), act)
    sim.run()
    assert len(seen) >= 3000
    assert seen == sorted(seen)


def test_time_stops_where_it_is_told_to() -> None:
    sim, nodes = world()
    nodes[0].host.send(1, Note("a"))
    sim.at(5.0, lambda: nodes[0].host.send(1, Note("b")))
    sim.run(until=2.0)
    assert sim.now == 2.0
    assert [text for *_, text in nodes[1].heard] == ["a"]
    nodes[0].host.send(1, Note("between"))
    sim.run(messages_max=1)
    assert sim.now == pytest.approx(2.01)
    sim.run()
    assert nodes[1].heard[-1][0] == pytest.approx(5.01)
    assert nodes[1].heard[-1][1:] == (0, "b")
    assert sim.messages == 3


def test_the_past_and_eternity_are_refused() -> None:
    sim, nodes = world()
    sim.run(until=3.0)
    for when in (2.9, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="nothing can happen"):
            sim.at(when, print)
    with pytest.raises(ValueError, match="time-out"):
        nodes[0].host.call(1, Ask(1), float("inf"))
    with pytest.raises(ValueError, match="sleep"):
        nodes[0].host.sleep(float("nan"))


# Calls


def test_a_call_is_answered_forwarded_and_refused() -> None:
    sim, nodes = world()
    outcomes: list[Any] = []
    hops: list[tuple[Address, Address, int]] = []
    sim.on_message = lambda sender, to, message, count: hops.append((sender, to, count))
    nodes[0].host.spawn(ask(outcomes, nodes[0].host, 1, Ask(4)))
    sim.run()
    nodes[0].host.spawn(ask(outcomes, nodes[0].host, 1, Pass(2)))
    sim.run()
    nodes[0].host.spawn(ask(outcomes, nodes[0].host, 1, Unknown()))
    sim.run()
    assert outcomes == [Told(5), Told(1), (pytest.approx(0.07), CallRefused)]
    assert hops == [(0, 1, 1), (1, 0, 0), (0, 1, 1), (1, 2, 2), (2, 0, 0), (0, 1, 1), (1, 0, 0)]
    assert sim.messages == len(hops)


def test_calls_time_out_in_the_order_of_their_deadlines() -> None:
    sim, nodes = world()
    outcomes: list[Any] = []
    for timeout_s in (3.0, 1.0, 2.0, 1.0):
        nodes[0].host.spawn(ask(outcomes, nodes[0].host, 99, Ask(0), timeout_s))
    sim.run(until=2.5)
    assert outcomes == [(1.0, CallTimeout), (1.0, CallTimeout), (2.0, CallTimeout)]
    sim.run()
    assert outcomes[-1] == (3.0, CallTimeout)
    assert sim.now == 3.0


def test_a_late_or_second_reply_is_not_taken_for_another() -> None:
    """The first call times out and its reply comes during the second, whose own reply comes twice."""
    sim, nodes = world(network=Later((0.1,), (1.5,), (0.1,), (0.9, 0.95), (0.1,), (0.1,)))
    outcomes: list[Any] = []

    async def procedure() -> None:
        for number in (10, 20, 30):
            await ask(outcomes, nodes[0].host, 1, Ask(number))

    nodes[0].host.spawn(procedure())
    sim.run()
    assert outcomes == [(1.0, CallTimeout), Told(21), Told(31)]


def test_many_answered_calls_leave_nothing_behind_one_that_waits() -> None:
    sim, nodes = world()
    outcomes: list[Any] = []

    async def often() -> None:
        for number in range(2000):
            await nodes[0].host.call(1, Ask(number), 1000.0)

    nodes[0].host.spawn(ask(outcomes, nodes[0].host, 99, Ask(0), 1000.0))
    nodes[0].host.spawn(often())
    sim.run(until=500.0)
    assert len(sim._deadlines._queues[1000.0].calls) < 100
    sim.run()
    assert outcomes == [(1000.0, CallTimeout)]


def test_a_host_that_forwards_to_itself_without_end_is_found_out() -> None:
    class Mirror(Service):
        @handles(Ask)
        def on_ask(self, origin: Address, ask: Ask) -> Reply:
            return Forward(0)

    sim = Simulator(1)
    sim.host(0).serve(Mirror())
    sim.hosts[0].send(0, Ask(1))
    with pytest.raises(SimulationError, match="to itself without end"):
        sim.run()


# Lives


def test_a_crash_loses_procedures_calls_and_services() -> None:
    sim, nodes = world()
    host = nodes[0].host
    outcomes: list[Any] = []
    cleaned: list[str] = []

    async def careful() -> None:
        try:
            await host.sleep(1.0)
            outcomes.append("woke")
        finally:
            cleaned.append("began")
            host.send(1, Note("from the grave"))
            await host.call(1, Ask(1), 1.0)
            cleaned.append("ended")

    host.spawn(ask(outcomes, host, 1, Ask(1)))
    host.spawn(careful())
    sim.at(0.015, host.crash)  # the reply is under way
    sim.at(0.016, host.restart)
    sim.at(0.5, lambda: nodes[1].host.spawn(ask(outcomes, nodes[1].host, 0, Ask(1))))
    sim.run()
    assert outcomes == [(pytest.approx(0.52), CallRefused)]
    assert cleaned == ["began"]
    assert nodes[1].heard == []
    assert host.incarnation == 1
    assert host.tasks is None


def test_the_dead_neither_hear_nor_speak() -> None:
    sim, nodes = world()
    outcomes: list[Any] = []
    nodes[0].host.send(1, Note("die"))
    nodes[0].host.spawn(ask(outcomes, nodes[0].host, 1, Ask(1), 0.5))
    sim.run()
    assert not nodes[1].host.alive
    assert outcomes == [(0.5, CallTimeout)]
    assert nodes[0].heard == []
    begun: list[str] = []

    async def procedure() -> None:
        begun.append("alive")

    nodes[1].host.spawn(procedure())
    nodes[1].host.send(0, Note("from the grave"))
    sim.run()
    assert (begun, nodes[0].heard) == ([], [])


def test_a_procedure_may_end_its_own_host() -> None:
    sim, nodes = world()
    host = nodes[0].host
    went_on: list[str] = []

    async def last_words() -> None:
        host.crash()
        host.restart()
        await host.sleep(1.0)
        went_on.append("from an earlier incarnation")

    host.spawn(last_words())
    sim.run()
    assert went_on == []
    assert host.tasks is None


def test_a_clean_up_that_cancels_others_does_not_save_the_rest_from_a_crash() -> None:
    sim, nodes = world()
    host = nodes[0].host
    woke: list[int] = []
    tasks: list[SimTask] = []

    async def sleeper(number: int) -> None:
        try:
            await host.sleep(1.0)
            woke.append(number)
        finally:
            for task in tasks:
                task.cancel()

    tasks += [host.spawn(sleeper(number)) for number in range(5)]
    sim.at(0.5, host.crash)
    sim.run()
    assert woke == []
    assert host.tasks is None


def test_an_address_has_one_living_host() -> None:
    sim, nodes = world()
    with pytest.raises(ValueError, match="crash it first"):
        sim.host(0)
    nodes[0].host.crash()
    second = Node(sim.host(0))
    with pytest.raises(ValueError, match="taken the address"):
        nodes[0].host.restart()
    nodes[1].host.send(0, Note("hello"))
    sim.run()
    assert [text for *_, text in second.heard] == ["hello"]


def test_addresses_may_be_numbers_in_any_order_and_names() -> None:
    sim = Simulator(1)
    addresses: list[Address] = [2, 0, "edge1", 1, -1, 2**40]
    nodes = {address: Node(sim.host(address)) for address in addresses}
    for address in [*addresses, 3, -2, "edge2"]:  # the last ones are nobody's
        nodes[0].host.send(address, Note(f"to {address}"))
    sim.run()
    assert {address: [text for *_, text in node.heard] for address, node in nodes.items()} == {
        address: [f"to {address}"] for address in addresses
    }


# Procedures


def test_a_procedure_begins_after_what_spawned_it() -> None:
    sim, nodes = world()
    order: list[str] = []

    async def procedure() -> None:
        order.append("procedure")

    def act() -> None:
        nodes[0].host.spawn(procedure())
        order.append("action")

    sim.at(1.0, act)
    sim.run()
    assert order == ["action", "procedure"]


@pytest.mark.parametrize("waits", [lambda host: host.sleep(5.0), lambda host: host.call(99, Ask(1), 5.0)])
def test_a_cancelled_procedure_ends_at_its_wait_and_may_clean_up(waits: Callable[[SimHost], Awaitable[None]]) -> None:
    sim, nodes = world()
    host = nodes[0].host
    steps: list[Any] = []

    async def procedure() -> None:
        try:
            await waits(host)
            steps.append("too far")
        finally:
            steps.append(await host.call(1, Ask(1), 9.0))
            await host.sleep(9.0)
            steps.append(host.now())

    task = host.spawn(procedure())
    sim.at(1.0, task.cancel)
    sim.run()
    assert steps == [Told(2), pytest.approx(10.02)]
    task.cancel()


def test_a_procedure_that_cancels_itself_ends_at_its_next_wait() -> None:
    sim, nodes = world()
    steps: list[str] = []

    async def procedure() -> None:
        task.cancel()
        steps.append("runs on")
        await nodes[0].host.sleep(1.0)
        steps.append("too far")

    task = nodes[0].host.spawn(procedure())
    sim.run()
    assert steps == ["runs on"]

    never = nodes[0].host.spawn(procedure())
    never.cancel()
    sim.run()
    assert steps == ["runs on"]


# Failures


def test_a_failing_handler_names_seed_time_host_and_message() -> None:
    sim, nodes = world(seed=4711)
    nodes[0].host.send(1, Note("fail"))
    with pytest.raises(SimulationError) as failure:
        sim.run()
    assert str(failure.value) == (
        "seed 4711, at 0.010000 s: the handler of host 1 for Note(text='fail') from 0 failed: KeyError: 'a bug'"
    )
    assert failure.value.seed == 4711
    assert isinstance(failure.value.__cause__, KeyError)


def test_a_failing_procedure_names_the_seed() -> None:
    sim, nodes = world(seed=4711)

    async def hasty() -> None:
        await nodes[2].host.call(99, Ask(1), 0.5)

    nodes[2].host.spawn(hasty())
    with pytest.raises(
        SimulationError, match=r"seed 4711, at 0\.500000 s: the procedure .*hasty of host 2 failed: CallT"
    ):
        sim.run()
    assert nodes[2].host.tasks is None


def test_a_failing_action_names_the_seed_and_the_run_can_go_on() -> None:
    sim, nodes = world(seed=4711)

    def check() -> None:
        raise AssertionError("not sorted")

    sim.at(1.0, check)
    sim.at(1.0, lambda: sim.run())
    sim.at(2.0, lambda: nodes[0].host.send(1, Note("after")))
    with pytest.raises(
        SimulationError, match=r"seed 4711, at 1\.0+ s: the action .*check failed: AssertionError: not so"
    ):
        sim.run()
    with pytest.raises(SimulationError, match="cannot call run"):
        sim.run()
    sim.run()
    assert [text for *_, text in nodes[1].heard] == ["after"]


def test_a_procedure_can_wait_for_nothing_but_its_host() -> None:
    class Odd:
        def __await__(self) -> Any:
            yield "an odd thing"

    async def procedure() -> None:
        await Odd()

    sim, nodes = world()
    nodes[0].host.spawn(procedure())
    with pytest.raises(SimulationError, match="'an odd thing' is nothing to wait for"):
        sim.run()


def test_garbage_collection_is_as_it_was_after_a_run() -> None:
    sim, nodes = world()
    gc.unfreeze()  # another test of this process may have left something frozen: then a run leaves it, and more
    before = (gc.get_threshold(), gc.get_freeze_count())
    nodes[0].host.send(1, Note("fail"))
    with pytest.raises(SimulationError):
        sim.run()
    sim.run()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


# Determinism


def scenario(seed: int) -> str:
    """Crashes, restarts, calls, tokens and faults among hosts with names: all that could depend on a hash."""
    network = Faults.parse("loss=0.05,dup=0.05,reorder=0.1,slow=0.2:3").over(Uniform(0.01, 0.05))
    names = [f"host {number}" for number in range(20)]
    sim = Simulator(seed, Partition([names[:5], names[5:10]], 0.5, 1.0, network))

    class Gossip(Service):
        def __init__(self, host: SimHost) -> None:
            self.host = host
            host.serve(self)
            host.spawn(self.chatter())

        @handles(Ask)
        def on_ask(self, origin: Address, ask: Ask) -> Reply:
            if ask.number % 3:
                return Forward(self.host.chance.choice(names), Ask(ask.number - 1))
            return Told(ask.number)

        async def chatter(self) -> None:
            while True:
                try:
                    await self.host.call(self.host.chance.choice(names), Ask(self.host.chance.randrange(9)), 0.3)
                except (CallTimeout, CallRefused):
                    await self.host.sleep(self.host.chance.random() / 10)

    def churn() -> None:
        host = sim.hosts[sim.chance.choice(names)]
        if host.alive:
            host.crash()
        else:
            host.restart()
            Gossip(host)

    for name in names:
        Gossip(sim.host(name))
    for tenth in range(1, 60):
        sim.at(tenth / 10, churn)
    trace = Trace(sim)
    sim.run(until=6.0)
    assert trace.count > 500
    return trace.digest()


def test_a_seed_gives_one_run_and_another_seed_another() -> None:
    assert scenario(1) == scenario(1)
    assert scenario(1) != scenario(2)


def test_a_seed_gives_one_run_in_every_process() -> None:
    command = [sys.executable, "-c", "from tests.sim.test_engine import scenario; print(scenario(5))"]
    digests = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert digests == [scenario(5)] * 2


def test_constant_is_the_network_where_none_is_given() -> None:
    assert isinstance(Simulator(1).network, Constant)


# Events


def test_an_event_wakes_what_waits_in_order_and_not_in_the_midst_of_what_sets_it() -> None:
    sim, (one, two, _) = world()
    event = one.host.event()
    happened: list[object] = []

    async def wait_for(node: Node, name: str) -> None:
        happened.append((name, await event.wait(), sim.now))

    def set_it() -> None:
        event.set()
        happened.append("set")
        sim.at(sim.now, lambda: happened.append("made later"))

    for node, name in ((one, "a"), (two, "b"), (one, "c")):
        node.host.spawn(wait_for(node, name))
    sim.at(1.0, set_it)
    sim.run()
    assert happened == ["set", ("a", True, 1.0), ("b", True, 1.0), ("c", True, 1.0), "made later"]


def test_an_event_at_the_very_end_of_a_wait_is_in_time() -> None:
    sim, (one, *_) = world()
    event = one.host.event()
    outcomes: list[object] = []

    async def wait_for(timeout_s: float) -> None:
        outcomes.append((timeout_s, await event.wait(timeout_s), sim.now))

    for timeout_s in (1.0, 0.5, 7.0):
        one.host.spawn(wait_for(timeout_s))
    sim.at(1.0, event.set)
    sim.run()
    assert outcomes == [(0.5, False, 0.5), (1.0, True, 1.0), (7.0, True, 1.0)]
    assert sim.now == 1.0, "a time-out that is not needed any more lets no time pass"
    assert not event.waits


def test_a_wait_for_an_event_ends_with_its_host_or_its_task() -> None:
    sim, (one, two, _) = world()
    event = one.host.event()
    ended: list[str] = []

    async def wait_for(name: str) -> None:
        try:
            await event.wait(9.0)
            ended.append(f"{name} went on")
        finally:
            ended.append(f"{name} ended")

    one.host.spawn(wait_for("of the dead"))
    task = two.host.spawn(wait_for("cancelled"))
    two.host.spawn(wait_for("left"))
    sim.at(1.0, one.host.crash)
    sim.at(2.0, task.cancel)
    sim.at(3.0, event.set)
    sim.run()
    assert ended == ["of the dead ended", "cancelled ended", "left went on", "left ended"]


def test_no_wait_has_a_senseless_time_out() -> None:
    _, (one, *_) = world()
    for timeout_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="time-out"):
            one.host.event().wait(timeout_s)


def test_a_wait_that_is_postponed_does_not_hold_up_those_that_begin_later() -> None:
    """Time would go back."""
    sim, (one, *_) = world()
    deadlines: Deadlines[EventWait] = Deadlines()
    waits = [one.host.event().wait(3.0) for _ in range(2)]
    for wait, deadline in zip(waits, (1.0, 2.0), strict=True):
        wait.task, wait.deadline = one.host.spawn(_nothing()), deadline
    deadlines.add(waits[0])
    assert deadlines.expired() is waits[0]
    deadlines.postpone(waits[0], 5.0)
    deadlines.add(waits[1])
    found = []
    for _ in range(8):
        if (due := deadlines.expired()) is not None:
            found.append((deadlines.due_at, due.deadline))
            due.task = None
            deadlines.end(due)
    assert found == [(2.0, 2.0), (5.0, 5.0)]
    sim.run()


async def _nothing() -> None:
    pass
