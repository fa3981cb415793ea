"""When to go round, by whom, and when directly again.

A host that was sent something and from which nothing has come is pinged. If it does not answer, some other hosts are
asked whether it answers them. If it does, and says that nothing comes to it from here, the path is cut, and what is
sent to it goes by the host that said so first. If nobody reaches it, it is down, or cut off from all: nothing can be
done, and it is pinged on.

    1 ──✕── 2      1: ping 2, no answer; 3, does 2 answer you?     3: 2, do you hear 1?     2: no
     ╲     ╱       3: yes, and it does not hear you                1: what is for 2 goes by 3 from now on
      ╲   ╱
        3          2: this came from 1 by 3, and 1 is not heard: what is for 1 goes by 3

Each direction goes round for itself, since a path may be cut in one. A detour has one host in between, which passes on
only what it can send directly: so there are no loops. Meanwhile the direct way is tried on, and taken again as soon as
it is there. What was under way in between may overtake, or come twice, as on any network: protocols bear that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from braidmq.bounded import BoundedDict
from braidmq.detours.messages import (
    AnswerPing,
    AskHearing,
    AskReach,
    NotPassed,
    PingDirectly,
    TellHearing,
    TellReach,
)
from braidmq.host import Address, Event, Host, Reply, Service, ask, handles

LOOK_S = 1.0
"""How often a host looks for others that do not answer, and tries the direct way to those that it goes round to."""

PING_S, PINGS = 0.5, 2
"""How long the answer to a ping may take, and how many are lost before a host counts as silent."""

REACH_S = 2.0
"""How long other hosts have to say whether they reach one that does not answer."""

ASKED_MAX = 8
"""Hosts that are asked that at a time."""

PROBES_MAX = 64
"""Hosts that are pinged because they do not answer, and questions of others about such, at a time."""

REST_S, REST_S_MAX = 1.0, 16.0
"""When others are asked again about a host that nobody reaches; twice as long each time, up to a bound."""

UNREACHED_MAX = 256
UNREACHED_S = 60.0
"""Hosts that nobody reaches, and that are pinged for so long after anything was last sent to them."""

ANSWERED_MAX = 1024
ANSWERED_S = 2.0
"""A host that has answered so recently is not gone round to because something comes from it by another."""

_log = logging.getLogger("braidmq.net")


class _Probe:
    """Finds out about a host that does not answer."""

    __slots__ = ("by", "is_answered", "through")

    def __init__(self, through: Event) -> None:
        self.by: Address | None = None
        """A host that reaches it."""
        self.is_answered = False
        self.through = through


class _Unreached:
    """A host that nobody was found to reach."""

    __slots__ = ("again_at", "missed_at", "rest_s")

    def __init__(self, now: float) -> None:
        self.rest_s = REST_S
        self.again_at = now + REST_S
        self.missed_at = now
        """When something was last sent to it for nothing."""


class Detours(Service):
    """One host's part."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ways = host.ways
        self.on_reached: Callable[[Address], None] = _ignore
        """Called with a host that could not be reached directly, and can again."""
        self._unsure: dict[Address, None] = {}
        """Detours that began since the last look, round hosts that may just be slow."""
        self._round: dict[Address, Address] = {}
        """The detours as they were at the last look."""
        self._probes: dict[Address, _Probe] = {}
        self._unreached: BoundedDict[Address, _Unreached] = BoundedDict(UNREACHED_MAX)
        self._answered: BoundedDict[Address, float] = BoundedDict(ANSWERED_MAX)
        """When a host has last answered a ping."""
        self._asking = 0
        """Questions of other hosts that are being found out about."""
        self._ways.on_passed = self._on_passed
        host.serve(self)

    def start(self) -> None:
        self._host.spawn(self._keep_looking())

    @property
    def ways(self) -> Mapping[Address, Address | None]:
        """The hosts that cannot be reached directly, and by whom they are reached; None if by nobody."""
        return {**dict.fromkeys(self._unreached), **self._ways.detours}

    def is_unreached(self, address: Address) -> bool:
        """Whether nobody was found to reach a host."""
        return address in self._unreached

    # Looking

    async def _keep_looking(self) -> None:
        while True:
            await self._host.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        for address in self._ways.unanswered():
            self._suspect(address)
        detours = dict(self._ways.detours)
        for address in [one for one in self._round if one not in detours]:
            self._note_reached(address)  # a link has come about
        self._round = detours
        now = self._host.now()
        for address in [one for one, it in self._unreached.items() if now - it.missed_at > UNREACHED_S]:
            del self._unreached[address]
        for address in self._unsure:
            if address in detours:  # it has not answered a ping meanwhile
                self._go_round(address, detours[address])
        self._unsure.clear()
        if self._unreached:
            self._ways.hurry()
        for address in (*detours, *self._unreached):
            self._ways.send_directly(address, PingDirectly())

    def _suspect(self, address: Address) -> None:
        """Something was sent to a host, and nothing has come."""
        unreached = self._unreached.get(address)
        if unreached is not None:
            unreached.missed_at = self._host.now()
            if self._host.now() < unreached.again_at:
                return
        if address in self._probes or address in self._ways.detours or address == self._host.address:
            return
        if len(self._probes) < PROBES_MAX:
            self._probes[address] = probe = _Probe(self._host.event())
            self._host.spawn(self._find_out(address, probe))

    async def _find_out(self, address: Address, probe: _Probe) -> None:
        try:
            for _ in range(PINGS):
                if not probe.is_answered:
                    self._ways.send_directly(address, PingDirectly())
                    await probe.through.wait(PING_S)
            if not probe.is_answered:
                self._end_detours_by(address)
                await self._ask_others(address, probe)
        finally:
            del self._probes[address]
        if probe.by is not None:
            self._go_round(address, probe.by)
        elif not probe.is_answered:
            self._rest(address)

    async def _ask_others(self, address: Address, probe: _Probe) -> None:
        others = [
            one for one in self._ways.linked if one not in (address, self._host.address) and self._is_reached(one)
        ]
        self._host.chance.shuffle(others)
        for other in others[:ASKED_MAX]:
            self._host.send(other, AskReach(address))
        if others:
            await probe.through.wait(REACH_S)

    def _is_reached(self, address: Address) -> bool:
        return address not in self._ways.detours and address not in self._unreached

    def _rest(self, address: Address) -> None:
        now = self._host.now()
        unreached = self._unreached.get(address)
        if unreached is None:
            self._unreached[address] = _Unreached(now)
        else:
            unreached.rest_s = min(2 * unreached.rest_s, REST_S_MAX)
            unreached.again_at = now + unreached.rest_s

    # Going round

    def go_round(self, address: Address, by: Address) -> None:
        """Somebody has found out that a host does not answer in time, and that it answers another one. It may be slow:
        it is pinged, and if it answers, nothing was lost by the detour. Where there is a detour already, the host that
        passes on may be gone."""
        if by != address and by not in self._ways.detours and self._ways.detours.get(address) != by:
            self._unsure[address] = None
            self._go_round(address, by, is_sure=False)
            self._ways.send_directly(address, PingDirectly())

    def try_directly(self, address: Address) -> None:
        """Somebody waits for a host: if it is gone round to, the direct way may be there again."""
        if address in self._ways.detours:
            self._ways.send_directly(address, PingDirectly())

    def _go_round(self, address: Address, by: Address, is_sure: bool = True) -> None:
        self._end_detours_by(address)
        self._unreached.pop(address, None)
        self._round[address] = by
        self._ways.go_round(address, by, is_sure)
        if is_sure:
            _log.warning("%s cannot be reached directly: what is for it goes by %s", address, by)

    def _end_detours_by(self, by: Address) -> None:
        """A host that passes on does not answer: others are looked for."""
        for address in [one for one, passing in self._ways.detours.items() if passing == by]:
            self._end_detour(address)

    def _end_detour(self, address: Address) -> None:
        """What is for a host is not passed on any more; that it is reached directly is not said."""
        self._round.pop(address, None)
        self._ways.go_directly(address)
        self._suspect(address)

    def _note_reached(self, address: Address) -> None:
        """A host is reached directly."""
        self._answered.renew(address, self._host.now())
        was_unsure = self._unsure.pop(address, address) is None
        was_unreached = self._unreached.pop(address, None) is not None
        was_round = self._round.pop(address, None) is not None
        if address in self._ways.detours:
            self._ways.go_directly(address)
        if was_round and not was_unsure:
            _log.info("%s is reached directly again", address)
        if was_round or was_unreached:
            self.on_reached(address)

    def _on_passed(self, origin: Address, by: Address) -> None:
        """Something from a host has come by another: then the way back is cut as well, unless that is known better."""
        if by == origin or origin in self._ways.detours or self._ways.hears(origin):
            return
        if self._host.now() - self._answered.get(origin, -ANSWERED_S) >= ANSWERED_S:
            self._go_round(origin, by)

    # What hosts say

    @handles(PingDirectly)
    def on_ping(self, origin: Address, ping: PingDirectly) -> Reply:
        if origin in self._ways.detours:  # a cut that has just healed, or one in the other direction only
            self._host.send(origin, AnswerPing())
            if not ping.is_back:
                self._ways.send_directly(origin, PingDirectly(is_back=True))
        self._ways.send_directly(origin, AnswerPing())
        return None

    @handles(AnswerPing)
    def on_answer(self, origin: Address, _answer: AnswerPing) -> Reply:
        probe = self._probes.get(origin)
        if probe is not None:
            probe.is_answered = True
            probe.by = None
            probe.through.set()
        self._note_reached(origin)
        return None

    @handles(AskReach)
    def on_ask_reach(self, origin: Address, asked: AskReach) -> Reply:
        if self._asking < PROBES_MAX and asked.address not in self._ways.detours:
            self._asking += 1
            self._host.spawn(self._answer_reach(origin, asked.address))
        return None

    async def _answer_reach(self, origin: Address, address: Address) -> None:
        try:
            told = await ask(self._host, address, AskHearing(origin), TellHearing, timeout_s=PING_S, tries=PINGS)
        finally:
            self._asking -= 1
        if told is not None and address not in self._ways.detours:
            self._host.send(origin, TellReach(address, told.is_heard))

    @handles(AskHearing)
    def on_ask_hearing(self, _origin: Address, asked: AskHearing) -> Reply:
        return TellHearing(self._ways.hears(asked.address))

    @handles(TellReach)
    def on_tell_reach(self, origin: Address, told: TellReach) -> Reply:
        probe = self._probes.get(told.address)
        if probe is not None and probe.by is None:
            if told.is_heard:  # the path is slow, not cut
                probe.is_answered = True
            else:
                probe.by = origin
            probe.through.set()
        return None

    @handles(NotPassed)
    def on_not_passed(self, origin: Address, told: NotPassed) -> Reply:
        if self._ways.detours.get(told.address) == origin:
            self._end_detour(told.address)
        return None


def _ignore(_address: Address) -> None:
    """Nobody wants to know."""
