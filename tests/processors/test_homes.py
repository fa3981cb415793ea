"""One topic on many edges: brokers that have publishers of a topic share its spool, and no others have part in it."""

from __future__ import annotations

import pytest

from braidmq.broker.local_topics import SPOOL_MAIL_PREFIX, SPOOL_PREFIX
from braidmq.processing.homes import WAIT_S
from tests.processors.simulated_homes import TOPIC, HomeSites, same


def test_two_homes_have_one_spool_and_a_third_broker_nothing() -> None:
    sites = HomeSites(3)
    one, other = sites.client(0), sites.client(1)
    sites.sent.clear()
    for number in range(3):
        one.publish(TOPIC, b"a%d" % number, qos=1)
        other.publish(TOPIC, b"b%d" % number, qos=number % 3)
    sites.run(3.0)
    assert same(sites, (0, 1)) == [b"a1", b"b1", b"a2", b"b2"]
    assert sites.at[0].runner.calls == [b"a0", b"a1", b"a2"]
    assert sites.at[1].runner.calls == [b"b0", b"b1", b"b2"]
    assert all(seen[-1] == payload for payload, seen in sites.at[0].runner.processed)
    assert sites.at[0].runner.processed[-1][1] == [b"b0", b"a1", b"b1", b"a2"]
    third = sites.at[2]
    assert not third.spool
    assert not len(third.homes)
    assert not third.runner.counts.copies_in
    assert {frozenset(pair) for pair in sites.sent} == {frozenset((0, 1))}, "nothing went to a third broker"


def test_a_home_alone_sends_nothing_and_does_not_wait() -> None:
    sites = HomeSites(3)
    one = sites.client(0)
    sites.settle_s = 0.1  # much less than the wait for others
    one.publish(TOPIC, b"first", qos=1)
    assert sites.at[0].runner.calls == [b"first"]
    sites.sent.clear()
    for number in range(5):
        one.publish(TOPIC, b"%d" % number, qos=1)
    sites.run(5.0)
    assert sites.at[0].payloads == [b"1", b"2", b"3", b"4"]
    assert not sites.sent
    assert sites.at[0].runner.counts.copies_out == 0


def test_a_late_home_has_the_last_messages_before_its_first_one() -> None:
    sites = HomeSites(3)
    one, other, late = sites.client(0), sites.client(1), sites.client(2)
    for number in range(4):
        one.publish(TOPIC, b"a%d" % number, qos=1)
        other.publish(TOPIC, b"b%d" % number, qos=1)
    sites.run(60.0)  # nothing is recent any more
    late.publish(TOPIC, b"c", qos=1)
    sites.run(2.0)
    assert sites.at[2].runner.processed == [(b"c", [b"b2", b"a3", b"b3", b"c"])]
    assert same(sites, (0, 1, 2)) == [b"b2", b"a3", b"b3", b"c"]


def test_what_was_never_answered_is_not_waited_for() -> None:
    """Another home is known, and gone: the first message is processed after the wait."""
    sites = HomeSites(2)
    sites.client(0).publish(TOPIC, b"a", qos=1)
    sites.run(5.0)
    late = sites.client(1)
    sites[0].crash()
    sites.settle_s = 0.3
    late.publish(TOPIC, b"b", qos=1)
    began = sites.sim.now
    while not sites.at[1].runner.calls:
        sites.run(0.05)
        assert sites.sim.now < began + WAIT_S + 0.5
    assert sites.at[1].runner.processed == [(b"b", [b"b"])]


def test_brokers_that_become_homes_at_the_same_time() -> None:
    """Neither knows of the other when the first messages come: both have them all the same, in one order."""
    for seed in range(2):
        sites = HomeSites(3, seed=seed)
        clients = [sites.client(number) for number in range(3)]
        sites.settle_s = 0.0
        for number, client in enumerate(clients):
            client.publish(TOPIC, b"%d" % number, qos=1)
        sites.run(5.0)
        assert sorted(same(sites, (0, 1, 2))) == [b"0", b"1", b"2"], f"seed {seed}"
        assert [sites.at[number].runner.calls for number in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_a_home_that_crashed_has_what_it_missed() -> None:
    sites = HomeSites(3, spool=3)
    one, other = sites.client(0), sites.client(1)
    one.publish(TOPIC, b"a", qos=1)
    other.publish(TOPIC, b"b", qos=1)
    sites.run(3.0)
    sites[1].crash()
    sites.run(30.0)
    for number in range(2):
        one.publish(TOPIC, b"missed %d" % number, qos=1)
    sites.start_again(1)
    sites.client(1, "another").publish(TOPIC, b"again", qos=1)
    sites.run(3.0)
    assert sites.at[1].runner.processed == [(b"again", [b"missed 0", b"missed 1", b"again"])]
    assert same(sites, (0, 1)) == [b"missed 0", b"missed 1", b"again"]


def test_without_publishers_a_home_drops_out_once_another_has_the_spool() -> None:
    sites = HomeSites(2)
    one, other = sites.client(0), sites.client(1)
    one.publish(TOPIC, b"a", qos=1)
    sites.run(2.0)
    one.disconnect()
    sites.at[0].sweep()
    assert len(sites.at[0].homes) == 1, "it keeps the spool while nobody else has it"
    other.publish(TOPIC, b"b", qos=1)
    sites.run(2.0)
    assert sites.at[1].payloads == [b"a", b"b"], "the spool has followed the publishers"
    sites.at[0].sweep()
    sites.run(2.0)
    assert not len(sites.at[0].homes)
    assert not sites.at[0].spool
    assert sites.at[0].assignments.load.storage == 0
    assert sites.at[0].assignments.load.compute == 0
    sites.sent.clear()
    other.publish(TOPIC, b"c", qos=1)
    sites.run(2.0)
    assert (1, 0) not in sites.sent, "nobody else is a home"
    assert sites.at[1].payloads == [b"a", b"b", b"c"]


def test_of_two_homes_without_publishers_one_keeps_the_spool() -> None:
    sites = HomeSites(2)
    clients = [sites.client(0), sites.client(1)]
    for client in clients:
        client.publish(TOPIC, b"x", qos=1)
    sites.run(2.0)
    for client in clients:
        client.disconnect()
    for _ in range(2):
        for number in (0, 1):
            sites.at[number].sweep()
    sites.run(2.0)
    (keeper,) = [one for one in sites.at.values() if len(one.homes)]
    assert keeper.payloads == [b"x", b"x"]


def test_scopes() -> None:
    clusters = ("east", "east", "west")
    sites = HomeSites(3, scope="cluster", clusters=clusters)
    for number in range(3):
        sites.client(number).publish(TOPIC, b"%d" % number, qos=1)
    sites.run(3.0)
    assert sorted(same(sites, (0, 1))) == [b"0", b"1"]
    assert sites.at[2].payloads == [b"2"]
    sites = HomeSites(2, scope="site")
    for number in range(2):
        sites.client(number).publish(TOPIC, b"%d" % number, qos=1)
    sites.run(3.0)
    assert [sites.at[number].payloads for number in range(2)] == [[b"0"], [b"1"]]
    assert not len(sites.at[0].homes)


def test_a_message_that_comes_here_is_the_last_of_its_spool_whatever_other_clocks_say() -> None:
    sites = HomeSites(2)
    one, other = sites.client(0), sites.client(1)
    ahead = sites.at[0].context
    now = ahead.now
    ahead.now = lambda: now() + 20.0
    for number in range(3):
        one.publish(TOPIC, b"a%d" % number, qos=1)
        other.publish(TOPIC, b"b%d" % number, qos=1)
    sites.run(3.0)
    assert same(sites, (0, 1)) == [b"a1", b"b1", b"a2", b"b2"]
    for number in (0, 1):
        assert all(seen[-1] == payload for payload, seen in sites.at[number].runner.processed)


def test_a_copy_waits_its_turn_and_is_not_processed() -> None:
    """What is in the queue of a slow worker and what comes meanwhile are in the same order as elsewhere."""
    sites = HomeSites(2)
    one, other = sites.client(0), sites.client(1)
    one.publish(TOPIC, b"a", qos=1)
    other.publish(TOPIC, b"b", qos=1)
    sites.run(2.0)
    sites.at[0].runner.is_slow = True
    one.publish(TOPIC, b"c", qos=1)
    other.publish(TOPIC, b"d", qos=1)
    one.publish(TOPIC, b"e", qos=0)
    assert len(sites.at[0].runner.queue) == 3
    sites.work()
    assert same(sites, (0, 1)) == [b"b", b"c", b"d", b"e"]
    assert sites.at[0].runner.calls == [b"a", b"c", b"e"]


def test_a_topic_that_is_left_to_spark_at_one_home_is_in_the_spools_of_the_others() -> None:
    sites = HomeSites(2)
    one, other = sites.client(0), sites.client(1)
    one.publish(TOPIC, b"a", qos=1)
    other.publish(TOPIC, b"b", qos=1)
    sites.run(2.0)
    assignment = sites.at[0].assignments.get(("tell", TOPIC))
    assert assignment is not None
    assignment.location = "spark"
    sites.at[0].sweep()
    assert not len(sites.at[0].homes)
    one.publish(TOPIC, b"c", qos=1)
    other.publish(TOPIC, b"d", qos=1)
    assert sites.at[1].payloads == [b"a", b"b", b"c", b"d"]
    assert sites.at[0].payloads == [b"a", b"b"], "no more copies come"
    assert sites.at[0].runner.calls == [b"a"]
    assert sites.at[0].runner.counts.delegated == 1


@pytest.mark.parametrize("prefix", [SPOOL_PREFIX, SPOOL_MAIL_PREFIX])
def test_clients_have_no_part_in_what_homes_say(prefix: str) -> None:
    sites = HomeSites(2)
    client = sites.client(0)
    for topic_filter in (f"{prefix}#", f"{prefix}tell/-/{TOPIC}", f"$share/a/{prefix}#"):
        assert client.subscribe(topic_filter) == 0x87
    assert client.publish(f"{prefix}tell/-/{TOPIC}", b"x", qos=1) == 0x87
    reader, other = sites.client(0, "reader"), sites.client(1)
    assert reader.subscribe("#") == 0
    client.publish(TOPIC, b"a", qos=1)
    other.publish(TOPIC, b"b", qos=1)
    sites.run(2.0)
    assert {one.topic for one in reader.take() if one.type.name == "PUBLISH"} == {TOPIC}
