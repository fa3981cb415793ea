"""The judge of a run: what is wrong is found, and only what the documents allow is excused."""

from __future__ import annotations

import json
import random

from braidmq.braid.transfer.inbound import FETCH_S
from braidmq.mqtt.packets import V5
from tests.chaos.chronicle import Chronicle, Happening
from tests.chaos.client import Visit
from tests.chaos.judge import FOUND_S, Verdict, judge
from tests.chaos.load import At, Publisher, Sent, Subscriber
from tests.chaos.report import Report

TOPIC = "soak/1"
KILLED_AT, MOVED_AT = 50.0, 51.0


class Run:
    """A publisher and a subscriber, both first at broker 1; what is published at a second arrives a second later."""

    def __init__(self) -> None:
        chance = random.Random(1)
        self.publisher = Publisher("p0", [], 1, V5, chance, [TOPIC], 2)
        self.subscriber = Subscriber("s0", [], 1, V5, chance, ["soak/#"], 2, roams=True)
        self.subscriber.subscribed_at = 1.0
        self.chronicle = Chronicle()

    def publish(self, number: int, *sends: At) -> None:
        acknowledged = At(sends[-1].time + 0.1, sends[-1].broker)
        self.publisher.sent.append(Sent("p0", TOPIC, number, 2, number, [*sends], acknowledged=acknowledged))

    def arrive(self, number: int, at: At) -> None:
        self.subscriber.note(("p0", TOPIC, number), 2, at)

    def kill(self, *brokers: int, ended_at: float = 60.0) -> None:
        for broker in brokers:
            self.chronicle.all.append(Happening("kill", (broker,), KILLED_AT, ended_at))

    def move(self, is_anew: bool = False) -> None:
        visit = Visit(2, MOVED_AT, 1, 1.0, (), MOVED_AT + 0.5, is_anew=is_anew, subscribed_at=MOVED_AT + 0.6)
        self.subscriber.visits.append(visit)

    def copy(self, *lines: tuple[float, str], of: int = 1) -> None:
        """What a broker says about its copies."""
        log = "\n".join(json.dumps({"time": at, "message": text}) for at, text in lines)
        self.chronicle.learn_copies(of, log)

    def verdict(self) -> Verdict:
        found = judge([self.publisher], [self.subscriber], self.chronicle, 0.0)
        assert Report(found).lines()
        return found


STARTED = (50.5, "b1 at 127.0.0.1:7883 listens for its peers with a braid key")
HELD = (2.0, "b3#1 holds a copy of this broker's store (2 of 2 copies)")
LACKED = (49.0, "b3#1 has no copy of this broker's store any more: it is silent (1 of 2 copies)")


def test_all_is_well() -> None:
    run = Run()
    run.publish(1, At(10, 1))
    run.arrive(1, At(11, 1))
    assert run.verdict().is_good


def test_what_has_not_come_is_missing() -> None:
    run = Run()
    run.publish(1, At(10, 1))
    verdict = run.verdict()
    assert [one.sent.number for one in verdict.missing] == [1]
    assert not verdict.is_good


def test_what_came_a_second_time_is_found() -> None:
    run = Run()
    run.publish(1, At(10, 1))
    run.arrive(1, At(11, 1))
    run.arrive(1, At(12, 1))
    verdict = run.verdict()
    assert len(verdict.twice) == 1
    assert not verdict.is_good


def test_what_came_behind_a_later_one_is_found() -> None:
    run = Run()
    run.publish(1, At(10, 1))
    run.publish(2, At(11, 1))
    run.arrive(2, At(12, 1))
    run.arrive(1, At(13, 1))
    verdict = run.verdict()
    assert [late.name for _, late in verdict.late] == [("p0", TOPIC, 1)]
    assert not verdict.is_good


def test_what_was_never_answered_is_found() -> None:
    run = Run()
    run.publisher._under_way[1] = Sent("p0", TOPIC, 1, 2, 1, [At(10, 1)])
    assert not run.verdict().is_good


def test_a_session_is_lost_though_a_copy_was_there() -> None:
    run = Run()
    run.copy(HELD)
    run.kill(1)
    run.move(is_anew=True)
    run.publish(1, At(40, 1))
    verdict = run.verdict()
    assert len(verdict.anew) == 1
    assert not verdict.is_good
    assert verdict.followed == {"missing": 1}, "that is why it is missing"


def test_a_session_is_lost_though_its_broker_was_there() -> None:
    run = Run()
    run.copy(HELD, LACKED)
    run.kill(3)
    run.move(is_anew=True)
    assert len(run.verdict().anew) == 1


def test_a_session_may_begin_anew_if_its_broker_and_its_copy_are_out_of_reach() -> None:
    run = Run()
    run.copy(HELD)
    run.kill(1, 3)
    run.move(is_anew=True)
    run.publish(1, At(40, 1))
    run.publish(2, At(MOVED_AT + 2, 1))
    verdict = run.verdict()
    assert not verdict.anew
    assert verdict.allowed == {"missing": 1}
    assert [one.sent.number for one in verdict.missing] == [2], "it was published after the new SUBACK"


def test_a_session_may_begin_anew_if_its_broker_had_no_copies() -> None:
    run = Run()
    run.copy(HELD, LACKED)
    run.kill(1)
    run.move(is_anew=True)
    assert run.verdict().is_good


def test_copies_are_read_from_a_log() -> None:
    run = Run()
    ended = (20.0, "b3#1 ends, and had a copy of this broker's store (1 of 2 copies)")
    run.copy(HELD, ended, (30.0, "b4#1 holds a copy of this broker's store (2 of 2 copies)"), LACKED)
    states = [run.chronicle.copies(1, at) for at in (1.0, 10.0, 25.0, 35.0, 60.0)]
    assert [state.is_complete for state in states] == [False, True, False, True, False]
    assert [sorted(state.mirrors) for state in states] == [[], [3], [], [4], []]


def test_a_session_may_begin_anew_at_a_broker_that_is_cut_off_itself() -> None:
    run = Run()
    run.copy(HELD)
    run.chronicle.all.append(Happening("isolate", (2,), KILLED_AT, 60.0))
    run.move(is_anew=True)
    assert run.verdict().is_good


def test_a_broker_that_has_just_started_has_no_copies_yet() -> None:
    run = Run()
    run.copy(HELD, STARTED)
    run.chronicle.all += [Happening("kill", (1,), at, at + 20.0) for at in (KILLED_AT, KILLED_AT + 10.0)]
    visit = Visit(2, 61.0, 1, 55.0, (), 61.5, is_anew=True)
    run.subscriber.visits.append(visit)
    assert run.verdict().is_good, "it came there at 55 s"


def test_what_a_broker_without_copies_has_done_may_come_again() -> None:
    run = Run()
    run.copy(HELD, LACKED)
    run.kill(1)
    run.move()
    run.publish(1, At(10, 1))
    run.publish(2, At(49.2, 1))
    for number, at in ((1, 11.0), (2, 49.5)):
        run.arrive(number, At(at, 1))
        run.arrive(number, At(MOVED_AT + 1, 2))
    verdict = run.verdict()
    assert verdict.allowed == {"twice": 1}
    assert [again.name[2] for _, again in verdict.twice] == [1], "the copy was there when that came"


def test_what_was_under_way_may_come_again_if_it_was_sent_as_new() -> None:
    run = Run()
    run.kill(1)
    run.publisher.visits.append(Visit(2, MOVED_AT, 1, 1.0, (), MOVED_AT + 0.5, is_anew=True))
    run.publish(1, At(49.9, 1), At(MOVED_AT + 0.5, 2))
    run.publisher.sent[0].as_new.append(At(MOVED_AT + 0.5, 2))
    run.arrive(1, At(52, 1))
    run.arrive(1, At(53, 1))
    assert run.verdict().is_good


def test_a_broker_has_lost_its_mirror_a_moment_before_it_says_so() -> None:
    run = Run()
    run.copy(HELD, LACKED)
    run.kill(1)
    run.move()
    for number, at in ((1, 45.0), (2, 48.0)):
        run.publish(number, At(at, 1))
        run.arrive(number, At(at + 0.1, 1))
        run.arrive(number, At(MOVED_AT + 1, 2))
    verdict = run.verdict()
    assert [again.name[2] for _, again in verdict.twice] == [1]
    assert verdict.excuses == {"twice: it came at a broker with too few copies": 1}


def test_a_broker_that_is_cut_off_may_have_an_older_session() -> None:
    run = Run()
    run.chronicle.all.append(Happening("isolate", (2,), KILLED_AT, 60.0))
    run.move()
    for number in (1, 2):
        run.publish(number, At(40.0 + number, 1))
    for number in (2, 1):
        run.arrive(number, At(45.0, 1))
        run.arrive(number, At(55.0, 2))
    verdict = run.verdict()
    assert verdict.allowed == {"twice": 2}
    assert [late.name[2] for _, late in verdict.late] == [1], "it was out of order before the client came there"


def test_what_is_sent_again_to_a_broker_that_is_cut_off_may_come_twice() -> None:
    for cut_off in (2, 3):
        run = Run()
        run.chronicle.all.append(Happening("isolate", (cut_off,), KILLED_AT, 60.0))
        run.publish(1, At(49.0, 1), At(55.0, 2))
        run.arrive(1, At(50.0, 1))
        run.arrive(1, At(61.0, 1))
        assert run.verdict().is_good == (cut_off == 2)


def test_what_is_published_until_an_older_session_is_found_may_come_twice() -> None:
    run = Run()
    run.copy(HELD)
    run.kill(1, 3)
    run.move(is_anew=True)
    for number, at in ((1, MOVED_AT + 1), (2, MOVED_AT + 2)):
        run.publish(number, At(at, 2))
        run.arrive(number, At(at + 1, 2))
    run.arrive(1, At(MOVED_AT + 10, 2))
    run.arrive(2, At(MOVED_AT + FOUND_S + 10, 2))
    verdict = run.verdict()
    assert verdict.allowed == {"twice": 1}
    assert [again.name[2] for _, again in verdict.twice] == [2]


def roamed(late_s: float = 3.0) -> Run:
    """The publisher publishes at broker 1, then at broker 3; that comes first."""
    run = Run()
    for broker in (1, 3):
        run.copy(HELD, of=broker)
    run.publish(1, At(20.0, 1))
    run.publish(2, At(21.0, 3))
    run.arrive(2, At(21.0 + late_s, 1))
    run.arrive(1, At(21.1 + late_s, 1))
    return run


def test_a_publisher_that_roams_is_in_order() -> None:
    assert [late.name[2] for _, late in roamed().verdict().late] == [1]


def test_a_publisher_that_roams_is_not_waited_for_for_ever() -> None:
    assert roamed(FETCH_S).verdict().is_good
    run = roamed(FETCH_S - 1.5)
    assert len(run.verdict().late) == 1, "it has come to another broker than the publisher's"
    run.publisher.sent[1].sends[0] = At(21.0, 1)
    run.publisher.sent[0].sends[0] = At(20.0, 3)
    assert run.verdict().is_good


def test_a_publisher_is_not_in_order_behind_a_broker_that_had_too_few_copies() -> None:
    run = roamed()
    run.copy(HELD, (19.0, LACKED[1]))
    assert run.verdict().is_good


def test_a_publisher_that_began_anew_is_not_in_order() -> None:
    run = roamed()
    visit = Visit(3, 20.5, 1, 1.0, (), 20.6, is_anew=True)
    run.publisher.visits.append(visit)
    assert not run.verdict().late


def test_a_publisher_that_roams_is_not_in_order_for_a_subscriber_that_does() -> None:
    run = roamed()
    run.subscriber.visits.append(Visit(1, 22.0, 2, 1.0, (), 22.1))
    assert run.verdict().is_good
