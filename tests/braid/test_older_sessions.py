"""Of two sessions of one client the older one is left alone: its client has had what is in it.

Brokers with real journals and mirrors, in virtual time; each test has one fault that leaves an older session somewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidmq.braid.roaming.directory_entries import REGISTER_S
from braidmq.braid.roaming.directory_messages import Claimed, Client, DirectoryEntry, Register, SessionHolder
from braidmq.braid.roaming.displaced import GIVE_UP_S
from braidmq.braid.roaming.incoming import OVERLAP_S
from braidmq.braid.roaming.marks import Horizon
from braidmq.braid.roaming.messages import (
    FoundSession,
    GivenUp,
    GiveUp,
    GiveUpAnswer,
    HeldCopyOf,
    Offer,
    OfferAnswer,
    Offered,
    SessionState,
    SessionStored,
    TakeAnswer,
    TakeSession,
    TakingSession,
)
from braidmq.braid.roaming.searching import SearchResult
from braidmq.braid.roaming.sessions import RoamingSession
from braidmq.host import Address
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.sites import payloads
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, persistent

from .draining import drain


@pytest.fixture
def sites(tmp_path: Path) -> FaultySites:
    return FaultySites(tmp_path, 5, seed=1, unreliable=False)


def come(sites: FaultySites, number: int) -> Peer:
    return sites.client(number, "ada", **persistent(V5))


def epoch_at(sites: FaultySites, number: int) -> int:
    return sites[number].braid.roaming.clients.epochs.get("ada", 0)


def isolate(sites: FaultySites, one: int) -> None:
    others = [other for other in range(sites.count) if other != one]
    sites.cut({(one, other) for other in others} | {(other, one) for other in others})


def test_what_a_giver_has_that_died_before_it_was_told_is_not_left_behind(sites: FaultySites) -> None:
    ada = come(sites, 0)
    ada.subscribe("tide", 2)
    ada.drop()
    publisher = sites.client(2)
    for number in range(3):
        publisher.publish("tide", b"%d" % number, 2)
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, SessionStored) and 0 in sites.all:
            sites.crash(0)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    ada = come(sites, 1)
    assert 0 in sites.down
    assert payloads(ada) == [b"0", b"1", b"2"]
    ada.drop()
    ada = come(sites, 2)
    assert payloads(ada) == []
    sites.sim.on_message = count
    sites.start(0)
    assert "ada" in sites[0].broker.sessions
    for _ in range(int(2 * REGISTER_S)):
        sites.run(1)
        assert payloads(ada) == []
    assert "ada" not in sites[0].broker.sessions


def test_a_horizon_knows_what_it_lacks_of_another() -> None:
    own = Horizon([("a", 3, ((5, 6), (9, 9))), ("a", 0, ((7, 7),))])
    assert own.covers_all([("a", 3, ()), ("a", 0, ((5, 7), (9, 9))), ("b", 0, ())])
    for row in (("a", 4, ()), ("a", 9, ()), ("a", 0, ((5, 8),)), ("a", 0, ((8, 9),)), ("b", 1, ())):
        assert not own.covers_all([row]), row


@pytest.mark.parametrize("at", [1, 4])
def test_what_came_while_a_session_was_being_given_up_comes_once(sites: FaultySites, at: int) -> None:
    come(sites, 0).subscribe("tide", 2)
    come(sites, 1).drop()
    own = {number: sites[number].braid.mirrors.own for number in (3, 4, 0)}
    publisher = sites.client(next(number for number, one in own.items() if one and 2 not in one.mirrors), "p")
    publisher.publish("tide", b"0", 2)
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, SessionState) and 2 in sites.all:
            sites.destroy(2)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    peer = sites[2].peer(V5)
    sites.sim.at(sites.sim.now, lambda: peer.connection.receive(wire.connect("ada", **persistent(V5))))
    sites.run(0.5)
    assert 2 in sites.down
    sites.settle_s = 4.0  # what was destroyed may have been the mirror of the publisher's broker
    for number in range(1, 4):
        publisher.publish("tide", b"%d" % number, 2)
    ada = come(sites, at)
    assert payloads(ada) == [b"0", b"1", b"2", b"3"]
    sites.run(60)
    assert payloads(ada) == []


def test_a_session_checks_marks_while_its_broker_has_yet_to_follow_what_it_has_had(sites: FaultySites) -> None:
    ada = come(sites, 0)
    ada.subscribe("tide", 2)
    had = ("gone#1", 5)
    cursors = sites[0].braid.catch_up.cursors
    cursors.mark_run_handled(had[0], cursors.of(had[0], 0, 0.0), 1, had[1])
    ada = come(sites, 1)
    session = sites[1].broker.sessions["ada"]
    assert isinstance(session, RoamingSession)
    assert Horizon(session.horizon).covers(had)
    sites.run(OVERLAP_S + 1)
    assert session.checks_marks
    followed = sites[1].braid.catch_up.cursors
    followed.mark_run_handled(had[0], followed.of(had[0], 0, 0.0), 1, had[1])
    sites.run(OVERLAP_S + 1)
    assert not session.checks_marks


def test_a_claim_is_not_repeated_when_it_is_not_wanted_any_more(sites: FaultySites) -> None:
    """A broker that was cut off would take the client from where it has gone meanwhile."""
    come(sites, 4)
    isolate(sites, 1)
    is_wanted = [True]
    directory = sites[1].braid.roaming.directory
    answers: list[Claimed | None] = []

    async def claim() -> None:
        answers.append(await directory.claim("ada", is_wanted=lambda: is_wanted[0]))

    sites[1].host.spawn(claim())
    sites.run(0.5)
    is_wanted[0] = False
    sites.mend(set(sites.cuts.now))
    sites.run(5)
    assert answers == [None]
    entries = [sites[number].braid.roaming.directory.registrar.get("ada") for number in sites.all]
    assert {one.holder.address for one in entries if one is not None} == {4}


def test_a_client_that_stays_is_told_to_the_directory_when_that_can_be_reached(sites: FaultySites) -> None:
    isolate(sites, 3)
    sites.settle_s = 6.0
    come(sites, 3)
    sites.mend(set(sites.cuts.now))
    sites.run(REGISTER_S + 5)
    epoch = epoch_at(sites, 3)
    holders = [sites[number].braid.roaming.directory.registrar.get("ada") for number in sites.all]
    assert (3, epoch) in [(one.holder.address, one.holder.epoch) for one in holders if one is not None]


def test_an_older_session_is_not_pushed_to_where_a_newer_one_is(sites: FaultySites) -> None:
    come(sites, 0).subscribe("tide", 2)
    ada = come(sites, 1)
    ada.drop()
    newer = sites[1].broker.sessions["ada"]
    asked = TakeSession("ada", sites[0].braid.identity, None)
    answer = sites[1].braid.roaming.taker.on_take_session(0, asked)
    assert isinstance(answer, TakingSession)
    assert answer.answer is TakeAnswer.BUSY
    sites.run(5)
    assert sites[1].broker.sessions["ada"] is newer


def test_a_session_that_was_pushed_knows_since_when_it_is_there(sites: FaultySites) -> None:
    ada = come(sites, 0)
    ada.subscribe("tide", 2)
    begun = sites[0].braid.roaming.clients.epochs.begun("ada")
    assert begun
    ada.drop()
    drain(sites, 0)
    (taker,) = [one for one in sites if "ada" in one.broker.sessions]
    assert taker.number
    assert taker.braid.roaming.clients.epochs.begun("ada") == begun


def test_a_broker_that_has_just_said_that_it_has_the_session_is_waited_for(sites: FaultySites) -> None:
    """Its next answer is late, and its mirror cannot be asked either."""
    come(sites, 2).subscribe("tide", 2)
    own = sites[2].braid.mirrors.own
    assert own is not None
    (mirror,) = own.mirrors
    new = next(one for one in sites.all if one not in (2, mirror))
    pairs: set[tuple[Address, Address]] = {(new, 2), (2, new), (new, mirror), (mirror, new)}
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, FoundSession) and (sender, to) == (2, new):
            sites.sim.on_message = count
            sites.cut(pairs)
            sites.sim.at(sites.sim.now + 1.6, lambda: sites.mend(pairs))
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    sites.settle_s = 4.0
    ada = come(sites, new)
    assert ada.connack is not None
    assert ada.connack.session_present
    assert not sites.cuts.now


def test_a_broker_that_is_reached_by_others_only_is_waited_for(sites: FaultySites) -> None:
    """It has the newer of two sessions, and the directory knows of the older one."""
    come(sites, 2).drop()
    isolate(sites, 1)
    come(sites, 1).drop()
    sites.mend(set(sites.cuts.now) - {(1, 4), (4, 1)})
    search = sites[4].braid.roaming.search.begin("ada", 0)
    before = SessionHolder("ada", 2, sites[2].braid.identity, epoch_at(sites, 2))
    newest: list[int] = []

    async def find() -> None:
        newest.append((await search.until_known(before)).found()[0].epoch)

    sites[4].host.spawn(find())
    sites.run(1)
    assert newest == [epoch_at(sites, 1)]
    assert newest[0] > before.epoch > 0


def test_a_broker_is_told_that_a_client_is_elsewhere_as_soon_as_the_directory_knows(sites: FaultySites) -> None:
    """It has an older session with a connection, and would tell the directory of it only later."""
    ada, registrar = come(sites, 2), sites[0].braid.roaming.directory.registrar
    here, epoch = sites[2].braid.identity, epoch_at(sites, 2)
    registrar.on_register(2, Register(here, (Client("ada", epoch, ""),), True))
    sites.run(GIVE_UP_S + 0.5)
    assert not ada.link.closed
    registrar.on_register(1, Register("other", (Client("ada", epoch + 1, ""),), True))
    sites.run(GIVE_UP_S + 0.5)
    assert ada.link.closed


def test_a_session_that_is_set_aside_is_not_served_by_a_broker_that_reaches_nobody(sites: FaultySites) -> None:
    """It knows that the client has a newer one, and has gathered nothing since."""
    come(sites, 2).subscribe("tide", 1)
    epoch, displaced = epoch_at(sites, 2), sites[2].braid.roaming.displaced
    displaced._set_aside(SessionHolder("ada", 1, sites[1].braid.identity, epoch + 1))
    isolate(sites, 2)
    ada = come(sites, 2)
    assert ada.connack is not None
    assert not ada.connack.session_present


def test_a_broker_does_not_give_up_an_older_session_than_the_one_that_is_looked_for(sites: FaultySites) -> None:
    """It is asked since it has a copy of what another broker has, and has a session of the client from before."""
    ada = come(sites, 0)
    epoch = epoch_at(sites, 0)
    handovers = sites[0].braid.roaming.handovers

    def asked(at_least: int) -> GiveUp:
        return GiveUp(at_least, "ada", "other", epoch + 10, False, of="gone", at_least=at_least)

    assert handovers.on_give_up(1, asked(epoch + 1)) == GivenUp(GiveUpAnswer.UNKNOWN)
    of_another = GiveUp(1, "ada", "other", epoch + 10, False, asked="who was here before")
    assert handovers.on_give_up(1, of_another) == GivenUp(GiveUpAnswer.UNKNOWN)
    assert not ada.link.closed
    given = handovers.on_give_up(1, asked(epoch))
    assert isinstance(given, GivenUp)
    assert given.answer is GiveUpAnswer.GIVEN


def test_a_client_that_begins_anew_has_nothing_of_a_session_whose_connection_is_still_there(
    sites: FaultySites,
) -> None:
    ada = come(sites, 0)
    sites[0].braid.roaming.displaced.leave_behind("ada")
    assert "ada" not in sites[0].broker.sessions
    sites.run(0.1)
    assert ada.link.closed


def test_a_mirror_ends_a_connection_of_an_older_session_than_the_one_in_its_copy(sites: FaultySites) -> None:
    """Its client has been at the broker that is gone since."""
    ada = come(sites, 0)
    epoch, adoptions = epoch_at(sites, 0), sites[0].braid.adoptions
    assert adoptions._has_newer("ada", epoch - 1)
    sites.run(0.1)
    assert not ada.link.closed
    assert not adoptions._has_newer("ada", epoch + 1)
    sites.run(0.1)
    assert ada.link.closed


# What can be told from what others say


def result_of(*answers: FoundSession) -> SearchResult:
    result = SearchResult(FoundSession("here", 0), 0)
    for number, answer in enumerate(answers, 1):
        result.add(number, answer)
    return result


def test_an_old_session_is_not_the_last_while_a_broker_that_is_heard_may_have_a_newer_one() -> None:
    old = FoundSession("one", 5)
    doubtful = result_of(old, FoundSession("two", 0, (HeldCopyOf("three", 1, 0, is_heard=True),)))
    assert doubtful.is_doubtful
    (found,) = doubtful.found()
    holder, lost = SessionHolder("ada", 1, "one", 5), SessionHolder("ada", 2, "two", 6)
    assert not doubtful.may_be_last(found, None, is_open=True)
    assert doubtful.may_be_last(found, None, is_open=False)
    assert not doubtful.may_be_last(found, holder, is_open=True)
    assert doubtful.may_be_last(found, holder, is_open=True, is_sure=True)
    assert doubtful.may_be_last(found, holder, is_open=False)
    assert not doubtful.may_be_last(found, lost, is_open=True)
    assert doubtful.may_be_last(found, lost, is_open=False)
    assert not result_of(old).may_be_last(found, lost, is_open=False)


def test_a_copy_is_not_the_last_while_others_have_not_answered_though_the_directory_is_sure() -> None:
    """It may have been told by the other side of a cut."""
    copied = result_of(FoundSession("two", 0, (HeldCopyOf("one", 1, 5, is_heard=False),)))
    (found,) = copied.found()
    assert not copied.may_be_last(found, SessionHolder("ada", 1, "one", 5), is_open=True, is_sure=True)
    assert copied.may_be_last(found, SessionHolder("ada", 1, "one", 5), is_open=False, is_sure=True)


def test_a_broker_that_gave_the_session_away_knows_of_a_newer_holder_than_the_directory() -> None:
    known = SessionHolder("ada", 1, "one", 5)
    newer, older = SessionHolder("ada", 3, "three", 7), SessionHolder("ada", 2, "two", 4)
    assert result_of(FoundSession("one", 0, gone_to=newer)).newest_holder(known) == newer
    assert result_of(FoundSession("one", 0, gone_to=older)).newest_holder(known) == known
    assert result_of(FoundSession("one", 0)).newest_holder(None) is None


def test_a_broker_says_where_a_session_has_gone(sites: FaultySites) -> None:
    come(sites, 0)
    come(sites, 1)
    gone_to = sites[0].braid.roaming.handovers.gone_to("ada")
    assert gone_to is not None
    assert gone_to.address == 1
    assert gone_to.epoch == epoch_at(sites, 1)


def test_a_mirror_that_was_given_up_has_nothing_to_say_while_others_hear_the_broker() -> None:
    given_up = FoundSession("one", 0, (HeldCopyOf("three", 4, 6, is_heard=False),))
    beginning = FoundSession("two", 0, (HeldCopyOf("three", 0, 0, is_heard=True),))
    silent = FoundSession("two", 0, (HeldCopyOf("three", 0, 0, is_heard=False),))
    assert result_of(given_up, beginning).found() == []
    (found,) = result_of(given_up, silent).found()
    assert (found.address, found.name) == (1, "three")


def test_a_mirror_whose_copy_is_old_is_not_asked_to_act_though_it_hears_the_broker() -> None:
    last = FoundSession("one", 0, (HeldCopyOf("three", 4, 6, is_heard=False),))
    former = FoundSession("two", 0, (HeldCopyOf("three", 2, 0, is_heard=True),))
    assert result_of(last, former).hearers_of("three") == []
    assert result_of(former).hearers_of("three") == [1]


def test_what_a_broker_had_once_is_not_asked_for_if_a_newer_session_was_found() -> None:
    found = result_of(FoundSession("one", 7), FoundSession("two", 0, (HeldCopyOf("three", 1, 0, is_heard=True),)))
    assert found.has_as_new(SessionHolder("ada", 3, "three", 7))
    assert not found.has_as_new(SessionHolder("ada", 3, "three", 8))


def test_a_claim_that_comes_late_does_not_cost_the_session(sites: FaultySites) -> None:
    """The directory is told that the session is where it has just gone from."""
    ada = come(sites, 1)
    ada.subscribe("tide", 2)
    ada = come(sites, 3)
    sites.run(40)
    sites[1].host.spawn(sites[1].braid.roaming.directory.claim("ada"))
    sites.run(3 * REGISTER_S)
    sites.client(0).publish("tide", b"0", 2)
    ada = come(sites, 4)
    assert ada.connack is not None
    assert ada.connack.session_present
    assert payloads(ada) == [b"0"]


def test_what_nobody_knows_of_is_not_claimed_back_from_where_its_client_has_come(sites: FaultySites) -> None:
    ada = come(sites, 1)
    ada.subscribe("tide", 2)
    isolate(sites, 1)
    sites.run(3)
    ada = come(sites, 2)
    ada = come(sites, 3)
    offered = sites[2].braid.roaming.displaced.on_offer(4, Offer("ada", "other#1", "", epoch_at(sites, 3)))
    assert isinstance(offered, Offered)
    assert offered.holder is not None
    assert offered.holder.name == sites[3].braid.identity
    sites.run(40)
    sites.mend(set(sites.cuts.now))
    for _ in range(int(3 * REGISTER_S)):
        sites.run(1)
        payloads(ada)
    offer = Offer("ada", "other#1", "", epoch_at(sites, 3))
    assert sites[2].braid.roaming.displaced.on_offer(4, offer) == Offered(OfferAnswer.UNKNOWN), "it has long gone"
    assert "ada" in sites[3].broker.sessions
    assert sites[3].broker.sessions["ada"].connection is not None
    assert "ada" not in sites[1].broker.sessions


@pytest.mark.parametrize("knows", [1, 2])
def test_a_drained_broker_does_not_push_what_is_older_than_the_session_elsewhere(
    sites: FaultySites, knows: int
) -> None:
    """It was cut off while its client went on, and has not learnt of that yet."""
    ada = come(sites, 2)
    ada.subscribe("tide", 2)
    ada.subscribe("ebb", 2)
    isolate(sites, 2)
    sites.run(3)
    ada.drop()
    ada = come(sites, 1)
    ada.unsubscribe("ebb")
    ada = come(sites, 3)
    sites.mend(set(sites.cuts.now))
    sites.run(1)
    for site in sites:  # a registrar that is behind
        directory = site.braid.roaming.directory
        entry = directory.registrar.get("ada")
        if entry is not None:
            holder = entry.holder
            name = sites[knows].braid.identity
            old = msgspec.structs.replace(holder, name=name, address=knows, epoch=epoch_at(sites, 2))
            directory.registrar._entries.keep(DirectoryEntry(old))
    pusher = sites[2].braid.roaming.pusher
    pusher.begin("ada")
    (record,) = [one for one in sites[2].braid.membership.records if one.address == 1]
    sites[2].host.spawn(pusher.push(sites[2].broker.sessions["ada"], record))
    sites.run(5)
    ada = come(sites, 4)
    assert ada.connack is not None
    assert ada.connack.session_present
    assert list(sites[4].broker.sessions["ada"].subscriptions) == ["tide"]
