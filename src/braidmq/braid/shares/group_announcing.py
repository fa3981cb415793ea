"""The groups that have members here, made known to all brokers; and those of other brokers, made known to the router.

A broker tells all others when a group has its first member here or has lost its last; a SUBACK waits for that. What one
has missed it learns when it compares what it knows with another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from braidmq.braid.interest.effect_waits import EffectWaits
from braidmq.braid.membership.presence import Presence
from braidmq.braid.shares.group_records import GroupRecords, Standing, standing_of
from braidmq.braid.shares.messages import CompareGroups, GroupRecord, GroupsKnown
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import is_local
from braidmq.broker.member_load import IDLE_MIN
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.mqtt.topics import split_share
from braidmq.overlay.ranges import OnOutcome, Outcome

COMPARE_S: Final = 10.0
"""How often a broker compares what it knows of groups with another …"""

FIRST_S: Final = 1.0
"""… and how soon after it has entered, once more: something may have been said to all meanwhile."""

SAY_AGAIN_S: Final = 300.0
"""How often a broker says again which groups have members here."""

CALL_TIMEOUT_S: Final = 2.0

TOLD_AT_ONCE: Final = 512
"""Groups that all brokers are told of in one message."""

SAY_LOAD_S: Final = 2.0
"""How often they are told, at most, how busy the members of a group are."""

NOBODY: Final = Standing(0, False)


class GroupAnnouncer(Service):
    def __init__(self, broker: Broker, host: Host, presence: Presence, records: GroupRecords) -> None:
        self._broker = broker
        self._host = host
        self._presence = presence
        self._records = records
        self.announce: Callable[[tuple[GroupRecord, ...], OnOutcome], None]
        """Tells all brokers, and calls with what came of it."""
        self.partners: Callable[[], list[Address]]
        """Brokers to compare with."""
        self.on_changed: Callable[[str], None]
        """Called with a filter when it may have changed whether anybody wants what it matches."""
        self.waits = EffectWaits(host, self._pending_at)
        self._news: dict[str, GroupRecord] = {}
        """By filter: what all brokers are to be told."""
        self._telling: dict[str, int] = {}
        """By filter: how often all are being told of it just now."""
        self._busy: dict[str, None] = {}
        """Groups whose members are as busy as all brokers have not been told yet."""
        self._said_at = 0.0
        records.on_change = self._on_change
        records.on_contradiction = self._contradict
        host.serve(self)

    # Groups here

    def on_group(self, group: ShareGroup) -> None:
        """A group has one member more or less here, or one that stays for another time."""
        full_filter = group.full_filter
        topic_filter = split_share(full_filter)[1]
        self.on_changed(topic_filter)
        if is_local(topic_filter) or self._presence.is_leaving:
            return
        standing = _standing(group)
        said = self._records.own_of(full_filter)
        if said is None and not standing.members and not standing.is_kept:
            return
        if said is None or bool(said.members) != bool(standing.members) or said.is_kept != standing.is_kept:
            self._say(full_filter, standing)
        elif standing_of(said)[2:] != standing[2:]:
            self._say_load_later(full_filter)

    def _say_load_later(self, full_filter: str) -> None:
        """How busy members are is told seldom: what brokers lend each other says so, too."""
        if not self._busy:
            self._host.spawn(self._say_loads())
        self._busy[full_filter] = None

    async def _say_loads(self) -> None:
        await self._host.sleep(SAY_LOAD_S)
        busy, self._busy = self._busy, {}
        for full_filter in busy:
            group, said = self._broker.router.group(full_filter), self._records.own_of(full_filter)
            standing = NOBODY if group is None else _standing(group)
            if said is not None and standing_of(said)[2:] != standing[2:] and not self._presence.is_leaving:
                self._say(full_filter, standing)

    def _contradict(self, full_filter: str) -> None:
        """Others know of members of an earlier incarnation of this broker."""
        group = self._broker.router.group(full_filter)
        self._say(full_filter, NOBODY if group is None else _standing(group))

    def _say(self, full_filter: str, standing: Standing) -> None:
        record = self._records.say(full_filter, self._host.address, self._broker.now(), standing)
        if record is None or not self._presence.is_in:
            return
        is_first = not self._news
        self._news[full_filter] = record
        if is_first:
            self._host.spawn(self._tell_news())

    async def _tell_news(self) -> None:
        """What has changed in one turn is told together."""
        news, self._news = list(self._news.values()), {}
        for first in range(0, len(news), TOLD_AT_ONCE):
            self._tell(tuple(news[first : first + TOLD_AT_ONCE]))

    def _tell(self, records: tuple[GroupRecord, ...]) -> None:
        for record in records:
            self._telling[record.full_filter] = self._telling.get(record.full_filter, 0) + 1

        def on_outcome(_outcome: Outcome | None) -> None:
            for record in records:
                left = self._telling[record.full_filter] - 1
                if left:
                    self._telling[record.full_filter] = left
                else:
                    del self._telling[record.full_filter]
                    self.waits.on_effective(record.full_filter)

        self.announce(records, on_outcome)

    def _pending_at(self, full_filter: str) -> str | None:
        return full_filter if full_filter in self._news or full_filter in self._telling else None

    def leave(self) -> None:
        """This broker ends, and its clients are gone: all are told who is left, as long as there is time for it."""
        gone = []
        for said in self._records.own:
            group = self._broker.router.group(said.full_filter)
            standing = NOBODY if group is None else _standing(group)
            if (said.members, said.is_kept) != standing[:2]:
                record = self._records.say(said.full_filter, self._host.address, self._broker.now(), standing)
                gone += [] if record is None else [record]
        for first in range(0, len(gone), TOLD_AT_ONCE):
            self.announce(tuple(gone[first : first + TOLD_AT_ONCE]), lambda _outcome: None)

    # Groups elsewhere

    def _on_change(self, full_filter: str) -> None:
        """Other brokers than before have members of a group."""
        router = self._broker.router
        group = router.group_for(full_filter)
        group.elsewhere = self._records.count_of(full_filter)
        router.forget(full_filter)
        self._broker.sessions.shares.on_member(full_filter)
        router.drop_unused(group)
        self.on_changed(split_share(full_filter)[1])

    # All that is known

    def enter(self) -> None:
        """The braid is entered: says which groups are here, and finds out which are elsewhere."""
        self._say_all()
        self._host.spawn(self._keep_comparing())

    def _say_all(self) -> None:
        self._said_at = self._host.now()
        for record in self._records.own:
            if record.has_anybody:
                self._say(record.full_filter, standing_of(record))

    async def _keep_comparing(self) -> None:
        pause_s = FIRST_S
        while self._presence.is_in:
            for partner in self.partners():
                await self._compare(partner)
            await self._host.sleep(pause_s)
            pause_s = self._host.chance.uniform(0.5, 1.0) * COMPARE_S
            self._records.expire(self._broker.now())
            if self._host.now() - self._said_at > SAY_AGAIN_S:
                self._say_all()

    async def _compare(self, partner: Address) -> None:
        known = CompareGroups(self._records.digest)
        told = await ask(self._host, partner, known, GroupsKnown, timeout_s=CALL_TIMEOUT_S)
        if told is not None and told.digest != self._records.digest:
            self._records.learn(told.records)
            if told.digest != self._records.digest:  # something is known only here
                self._host.send(partner, GroupsKnown(b"", self._records.all))

    @handles(CompareGroups)
    def on_compare_groups(self, _origin: Address, asked: CompareGroups) -> Reply:
        digest = self._records.digest
        return GroupsKnown(digest, () if asked.digest == digest else self._records.all)

    @handles(GroupsKnown)
    def on_groups_known(self, _origin: Address, told: GroupsKnown) -> Reply:
        self._records.learn(told.records)
        return None


def _standing(group: ShareGroup) -> Standing:
    """How many members are connected here, whether there is a session that stays, and how busy they are, roughly."""
    connected = sum(session.connection is not None for session in group.members)
    room, idle = group.told_load
    return Standing(
        connected, any(session.durable for session in group.members), room, round(idle / IDLE_MIN) * IDLE_MIN
    )
