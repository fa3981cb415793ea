"""A fleet comes back at once: every client connects and subscribes to a filter of its own; then each gets a command.

In between nothing happens for a while: what so many clients cost then, beside the same brokers without any.

Commands for the clients of one broker are sent from another one, broker by broker. Meanwhile every broker's links are
watched: no publication may reach a broker that has no subscriber for it, not even to be passed on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site
from bench.fleet.figures import Figure, Say, Sizes, at_most, exactly
from bench.fleet.idle import Idle, idle, shown, wait_until_quiet
from bench.fleet.load import CLIENTS_MAX, Clients, Connected, Received, Times, milliseconds
from bench.loader import LoadError

BROKERS = 5
CONNECTING = 50
"""Clients a broker that are on their way in at the same time."""
STORM_S = 600.0
COMMANDERS = 10
"""Connections that commands are sent over."""
COMMANDS_UNDER_WAY = 50
"""Unacknowledged, a connection."""
ARRIVE_S = 120.0
QUIET_S = 10.0
SETTLE_S = 2.0
"""Before links are read: what belongs to the last commands has come then."""
SUBACK_P99_MAX_US = 1_000_000
STORM_MAX_S = 60.0
FILTER = "cmd/%/#"
TOPIC = "cmd/%/go"


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    clients: int
    brokers: int
    empty: Idle
    """Before the first client."""
    full: Idle
    """With all of them, each with a filter of its own."""
    connect_s: float
    """From the first CONNECT to the last SUBACK."""
    subacks: Times
    """At the broker where the p99 was longest; `count` is of all."""
    connects: Times
    """Likewise, CONNECT to CONNACK."""
    commands: int
    received: int
    twice: int
    wrong: int
    """At another client than the one that it was for."""
    commands_per_s: float
    delay: Times
    """From the publication of a command to its delivery; the slowest broker's."""
    messages_to_right: int
    """Messages with commands that came in at the broker of the clients."""
    messages_astray: int
    """The same at brokers that had no subscriber for them."""


def measure(sites: Sequence[Site], sizes: Sizes, say: Say) -> Storm:
    each = sizes.filters // len(sites)
    if each > CLIENTS_MAX:
        raise LoadError(f"at most {CLIENTS_MAX * len(sites):,} clients fit {len(sites)} brokers")
    total = each * len(sites)
    with contextlib.ExitStack() as stack:
        crowds = [stack.enter_context(Clients()) for _ in sites]
        wait_until_quiet(sites)
        empty = idle(sites, 0, 0, sizes.idle_s)
        say(f"no clients: {shown(empty)}")
        say(f"{total:,} clients connect and subscribe at {len(sites)} brokers")
        connect_s, made = _connect(sites, crowds, each)
        say(f"all in after {connect_s:.1f} s; SUBACK {_slowest([one.subacks for one in made]).shown}")
        wait_until_quiet(sites)
        full = idle(sites, 0, total, sizes.idle_s)
        say(f"{total:,} clients, nothing happens: {shown(full)}")
        for crowd in crowds:
            crowd.expect(total, own=True)
        rates: list[float] = []
        delays: list[Times] = []
        right = astray = 0
        for target in range(len(sites)):
            before = [site.publications_in for site in sites]
            rate, delay = _command(sites[(target + 1) % len(sites)], crowds[target], target * each, each)
            rates.append(rate)
            delays.append(delay)
            time.sleep(SETTLE_S)
            came = [site.publications_in - past for site, past in zip(sites, before, strict=True)]
            right += came[target]
            astray += sum(came) - came[target]
            say(f"commands to the clients of broker {target + 1}: {rates[-1]:,.0f}/s; links received {came}")
        got = [crowd.wait_for(each, 1.0, 1.0) for crowd in crowds]
    return _summed(total, empty, full, connect_s, made, got, rates, _slowest(delays), right, astray)


def _summed(
    total: int,
    empty: Idle,
    full: Idle,
    connect_s: float,
    made: Sequence[Connected],
    got: Sequence[Received],
    rates: Sequence[float],
    delay: Times,
    right: int,
    astray: int,
) -> Storm:
    return Storm(
        clients=total,
        brokers=len(full.cpu_s),
        empty=empty,
        full=full,
        connect_s=connect_s,
        subacks=_slowest([one.subacks for one in made]),
        connects=_slowest([one.connects for one in made]),
        commands=total,
        received=sum(one.received for one in got),
        twice=sum(one.twice for one in got),
        wrong=sum(one.wrong for one in got),
        commands_per_s=sum(rates) / len(rates),
        delay=delay,
        messages_to_right=right,
        messages_astray=astray,
    )


def _connect(sites: Sequence[Site], crowds: Sequence[Clients], each: int) -> tuple[float, list[Connected]]:
    began = time.monotonic()
    for number, (site, crowd) in enumerate(zip(sites, crowds, strict=True)):
        words = {"first": number * each, "under_way": CONNECTING, "filter": FILTER, "qos": 1, "id": "device"}
        crowd.send("connect", STORM_S, port=site.port, count=each, group="devices", timeout=STORM_S, **words)
    made = [crowd.answer(Connected) for crowd in crowds]
    took_s = time.monotonic() - began
    if (missing := each * len(sites) - sum(one.subscribed for one in made)) > 0:
        raise LoadError(f"{missing:,} clients could not subscribe within {STORM_S:.0f} s")
    return took_s, made


def _command(site: Site, crowd: Clients, first: int, count: int) -> tuple[float, Times]:
    """A command to each client of a crowd: how many a second, and how long they took."""
    with Clients() as commander:
        commander.connect(site.port, COMMANDERS, "commanders", id="commander")
        sent = commander.publish("commanders", TOPIC, count, start=first, qos=1, under_way=COMMANDS_UNDER_WAY)
        got = crowd.wait_for(count, ARRIVE_S, QUIET_S)
    rate = got.received / max(1e-9, (got.last_ns - sent.began_ns) / 1e9) if got.received else 0.0
    return rate, got.deliveries


def _slowest(times: Sequence[Times]) -> Times:
    worst = max(times, key=lambda one: one.p99_us)
    return Times(sum(one.count for one in times), worst.p50_us, worst.p99_us, max(one.max_us for one in times))


def figures(found: Storm) -> list[Figure]:
    return [
        at_most(
            "all connected and subscribed after",
            found.connect_s,
            STORM_MAX_S,
            f"{found.connect_s:.1f} s",
            f"{STORM_MAX_S:.0f} s, or what the machine can",
        ),
        at_most(
            "SUBACK, p50 / p99",
            found.subacks.p99_us,
            SUBACK_P99_MAX_US,
            found.subacks.shown,
            f"{milliseconds(SUBACK_P99_MAX_US)} (p99)",
        ),
        Figure("CONNACK, p50 / p99", found.connects.shown),
        Figure("nothing happens, a broker without clients", shown(found.empty)),
        Figure("… with all of them", shown(found.full)),
        exactly("commands delivered", found.received, found.commands),
        exactly("commands delivered twice, or to the wrong client", found.twice + found.wrong, 0),
        Figure("messages with commands at the brokers of their clients", f"{found.messages_to_right:,}"),
        exactly("messages with commands at any other broker", found.messages_astray, 0),
        Figure("commands a second", f"{found.commands_per_s:,.0f}/s"),
        Figure("from command to delivery under this load, p50 / p99", found.delay.shown),
    ]
