"""What waits in a session that has come until an origin has said what is before it: it comes in the order of its
publisher, which may have roamed among origins."""

from __future__ import annotations

from braidmq.braid.roaming.marks import Horizon, Mark, MarkedDelivery, Marks
from braidmq.braid.roaming.sessions import RoamingSession
from braidmq.broker.message import Delivery, Message
from braidmq.mqtt.wire import string
from tests.braid.sites import Sites


class Arrived:
    """A session that has come, and what it gets."""

    def __init__(self) -> None:
        self.broker = Sites(1)[0].broker
        self.marks = Marks()
        self.session = RoamingSession(self.broker, "ada", 1, 1000, self.marks)
        self.asked: list[str] = []
        self.session.on_unproven = self.asked.append
        self.session.arrive((), (), Horizon(()))

    def get(self, number: int, mark: Mark) -> None:
        self.marks.current = mark
        self.session.deliver(_message(number), 1)
        self.marks.current = None

    def get_behind(self, follows: Mark, number: int, mark: Mark) -> None:
        self.marks.follows = follows
        self.get(number, mark)
        self.marks.follows = None

    @property
    def got(self) -> list[int]:
        backlog = self.session.backlog
        return [] if backlog is None else [int(one.message.payload) for one in backlog.waiting]


def _message(number: int) -> Message:
    return Message("tide", string("tide"), str(number).encode(), 1, False, "bob", b"", None)


def _found(number: int, mark: Mark, follows: Mark | None = None) -> MarkedDelivery:
    return MarkedDelivery(Delivery(_message(number), 1, False, (), ""), mark, follows)


def test_what_was_published_elsewhere_in_between_comes_in_between() -> None:
    ada = Arrived()
    ada.get(1, ("one", 8))
    ada.get(2, ("other", 5))
    ada.get(3, ("one", 9))
    assert ada.asked == ["one"]
    ada.session.note_proven("other", 5, is_last=True)
    ada.session.prove("one", [_found(0, ("one", 7)), _found(3, ("one", 9), ("other", 5))], 9, is_last=True)
    assert ada.got == [0, 1, 2, 3]


def test_what_was_found_waits_for_what_its_publisher_had_published_elsewhere() -> None:
    ada = Arrived()
    ada.get(4, ("one", 9))
    ada.session.prove("one", [_found(2, ("one", 7), ("other", 5)), _found(3, ("one", 8))], 9, is_last=True)
    assert ada.got == []
    assert ada.asked == ["one", "other"]
    assert ada.session.last_unproven("other") == 5
    ada.session.prove("other", [_found(1, ("other", 5))], 5, is_last=True)
    assert ada.got == [1, 2, 3, 4]


def test_what_comes_late_to_the_origin_that_is_asked_is_still_before() -> None:
    ada = Arrived()
    ada.get(4, ("one", 9))
    ada.session.prove("one", [_found(3, ("one", 8), ("other", 5))], 9, is_last=True)
    ada.get(1, ("other", 4))
    ada.get(2, ("other", 5))
    ada.get(5, ("other", 6))
    ada.session.prove("other", [_found(1, ("other", 4)), _found(2, ("other", 5))], 6, is_last=True)
    assert ada.got == [1, 2, 3, 4, 5]


def test_what_comes_late_waits_for_what_its_publisher_had_published_elsewhere() -> None:
    """It was fetched from an origin that did not answer before."""
    ada = Arrived()
    ada.session.note_proven("one", 2, is_last=True)
    ada.get_behind(("other", 5), 2, ("one", 1))
    assert ada.asked == ["other"]
    ada.get(3, ("one", 2))
    ada.session.prove("other", [_found(1, ("other", 5))], 5, is_last=True)
    assert ada.got == [1, 2, 3]


def test_what_was_published_here_and_there_comes_in_order_however_it_has_come() -> None:
    """At one broker, then at another, then at the first again."""
    ada = Arrived()
    ada.get(6, ("other", 9))
    ada.get_behind(("other", 9), 7, ("one", 42))
    ada.get(1, ("one", 20))
    ada.get(3, ("one", 25))
    ada.get_behind(("one", 25), 4, ("other", 7))
    ada.get(2, ("one", 23))
    ada.get(5, ("other", 8))
    ada.session.note_proven("one", 42, is_last=True)
    ada.session.prove("other", [], 9, is_last=True)
    assert ada.got == [1, 2, 3, 4, 5, 6, 7]


def test_an_origin_that_does_not_answer_is_not_waited_for_again() -> None:
    ada = Arrived()
    ada.get(3, ("one", 8))
    ada.session.prove("one", [_found(2, ("one", 7), ("other", 5))], 8, is_last=True)
    assert ada.asked == ["one", "other"]
    ada.session.release_all()
    assert ada.got == [2, 3]
    assert ada.asked == ["one", "other"]
