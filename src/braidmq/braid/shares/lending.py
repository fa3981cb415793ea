"""What waits here, lent to members at other brokers.

A broker that has members, and is thought to have room, is sent as many messages as it can take: the nearest first (same
cluster, then the cluster above, then any), and those that are equally near in turn. It says what has
become of them. What its members have acknowledged is done; what they have not comes back, to the front of the queue,
and goes to another. A broker that is silent is asked. If it does not answer, what it had goes to another, but for QoS
2: an exchange that may have begun ends where it began [MQTT-4.8.2-4], so it is waited for until that broker says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.interest.scope import may_see
from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.shares.member_room import MemberRoom
from braidmq.braid.shares.messages import Assign, Assigned, ForgetTaken, GroupRecord, LentMessage
from braidmq.braid.shares.outbox import Outbox
from braidmq.braid.shares.spreading import Spreading
from braidmq.braid.transfer.batch import item_of
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import GroupQueue, number_of
from braidmq.broker.message import Delivery, Message
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, Reply, Service, handles

BATCH_MAX: Final = 256
"""Messages that are lent in one message between brokers."""

PROBE_S: Final = 2.0
"""How long a broker without room is left alone before it is tried again: its notice may have been lost."""

ATTEMPTS_MAX: Final = 65_536
"""Messages of which it is remembered how often they were lent."""

ROOMS_MAX: Final = 65_536
"""Groups at brokers of which it is remembered how much room they have."""


class RemoteLoan(NamedTuple):
    """A message of a queue here that another broker has."""

    group: ShareGroup
    queue: GroupQueue
    kept: Delivery
    identity: str
    """Of that broker; empty if it is not known which."""
    attempt: int
    lent_at: float


class Lender(Service):
    def __init__(
        self, broker: Broker, host: Host, records: GroupRecords, identity: str, cluster: str, outbox: Outbox
    ) -> None:
        """`identity` and `cluster` are those of this broker."""
        self._broker = broker
        self._host = host
        self._records = records
        self._levels = cluster.split("/") if cluster else []
        self._outbox = outbox
        self._shares = broker.sessions.shares
        self._rooms: dict[tuple[str, str], MemberRoom] = {}
        """By filter and identity."""
        self.loans: dict[int, RemoteLoan] = {}
        """By number."""
        self._attempts: BoundedDict[int, int] = BoundedDict(ATTEMPTS_MAX)
        """By number of what came back: how often it was lent."""
        self._waiting: dict[ShareGroup, None] = {}
        """Groups of which something waits here, and that may have members elsewhere which are free."""
        self._unsure: dict[tuple[str, str], list[LentMessage]] = {}
        """By filter and identity: what leaves at QoS 0."""
        self._turn = 0
        self.spreading = Spreading(self, broker, records, identity)
        self.assigned = self.returned = 0
        """Messages of QoS 1 and 2 that were lent to other brokers, and that came back."""
        host.serve(self)

    # What waits

    def on_waiting(self, group: ShareGroup) -> None:
        if group not in self._waiting:
            self._waiting[group] = None
            self._broker.request_flush()

    def is_for_group(self, message: Message, group: ShareGroup) -> bool:
        """Whether a group has a member elsewhere that may get a publication."""
        return any(may_see(one.cluster, message.forward) for one in self._records.members_of(group.full_filter))

    def send_unsure(self, message: Message, group: ShareGroup) -> bool:
        """Sends a message of QoS 0 to a broker whose members are thought to have room; False if there is none."""
        able = [one for one in self.nearest(group) if may_see(one[1].cluster, message.forward)]
        if not group.is_near:
            chosen = self.spreading.choose(group, message)
            able = [one for one in able if one[1] is chosen]
        if not able:
            return False
        _, record, room = able[0]
        room.used_at = self.next_turn()
        job = LentMessage(0, message.topic, item_of(message, self._broker.now()))
        self._unsure.setdefault((group.full_filter, record.identity), []).append(job)
        self._broker.request_flush()
        return True

    def dispatch(self) -> None:
        """The end of a tick: what waits is lent to brokers that have room."""
        waiting, self._waiting = self._waiting, {}
        for group in waiting:
            if group.is_near:
                self._shares.bind_here(group)
                self._dispatch(group)
            else:
                self.spreading.dispatch(group)
        unsure, self._unsure = self._unsure, {}
        for (full_filter, identity), jobs in unsure.items():
            record = next((one for one in self._records.members_of(full_filter) if one.identity == identity), None)
            if record is not None:
                self._outbox.add(record.address, Assign(full_filter, 0, tuple(jobs)))

    def nearest(self, group: ShareGroup) -> list[tuple[int, GroupRecord, MemberRoom]]:
        """The brokers that have members and room: the nearest first, and of those the one whose turn it is."""
        found = [
            (self.levels_up(one.cluster), one, self.room_of(one)) for one in self._records.members_of(group.full_filter)
        ]
        able = [one for one in found if one[2].left > 0]
        return sorted(able, key=lambda one: (one[0], one[2].used_at))

    def next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def levels_up(self, cluster: str) -> int:
        """How many levels up from this broker's cluster another one's is found."""
        common = 0
        for own, other in zip(self._levels, cluster.split("/"), strict=False):
            if own != other:
                break
            common += 1
        return len(self._levels) - common

    def room_of(self, record: GroupRecord) -> MemberRoom:
        key = (record.full_filter, record.identity)
        room = self._rooms.get(key)
        if room is None:
            if len(self._rooms) >= ROOMS_MAX:
                self._rooms.pop(next(iter(self._rooms)))
            room = self._rooms[key] = MemberRoom(self._host.now(), record.room)
        return room

    def _dispatch(self, group: ShareGroup) -> None:
        queue = group.queue
        able = self.nearest(group)
        for distance in dict.fromkeys([one[0] for one in able]):
            while queue is not None and queue.waiting:
                equal = [one for one in able if one[0] == distance and one[2].left > 0]
                before = len(queue.waiting)
                for _, record, room in equal:
                    share = -(-before // len(equal))
                    self.lend(group, queue, record, room, min(share, room.left, BATCH_MAX))
                if len(queue.waiting) == before:
                    break

    def lend(
        self,
        group: ShareGroup,
        queue: GroupQueue,
        record: GroupRecord,
        room: MemberRoom,
        count: int,
        is_wanted: Callable[[Message], bool] = lambda _message: True,
    ) -> None:
        """Lends messages to a broker: at most so many, of those that are wanted and may go there."""
        now, host_now = self._broker.now(), self._host.now()
        jobs: list[LentMessage] = []
        while len(jobs) < count:
            kept = queue.lend(now, lambda message: may_see(record.cluster, message.forward) and is_wanted(message))
            if kept is None:
                break
            number = number_of(kept)
            attempt = self._attempts.get(number, 0)
            self.loans[number] = RemoteLoan(group, queue, kept, record.identity, attempt, host_now)
            jobs.append(LentMessage(number, kept.message.topic, item_of(kept.message, now), attempt))
        if jobs:
            self.assigned += len(jobs)
            room.used_at = self.next_turn()
            self._outbox.add(record.address, Assign(group.full_filter, room.send(len(jobs)), tuple(jobs)))

    # What has become of it

    @handles(Assigned)
    def on_assigned(self, origin: Address, told: Assigned) -> Reply:
        room = self._rooms.get((told.full_filter, told.identity))
        if room is not None:
            room.hear(told.batch, told.free, self._host.now())
        self.settle(origin, told.settled)
        self.give_back(told.identity, told.returned)
        group = self._broker.router.group(told.full_filter)
        if group is not None:
            if group.is_waiting:
                self.on_waiting(group)
            else:
                self._broker.router.drop_unused(group)
        return None

    def settle(self, origin: Address, numbers: Iterable[int]) -> None:
        taken = []
        for number in numbers:
            loan = self.loans.pop(number, None)
            if loan is not None:
                loan.queue.settle(loan.kept)
                self._attempts.pop(number, None)
            if loan is None or loan.kept.qos == 2:
                taken.append(number)
        if taken:
            self._outbox.add_when_written(origin, ForgetTaken(tuple(taken)))
        self._broker.request_flush()

    def end(self, kept: Delivery, queue: GroupQueue) -> None:
        """A message goes on at another broker: nothing of it stays here."""
        self.loans.pop(number_of(kept), None)
        queue.remove(kept)
        self._broker.request_flush()

    def give_back(self, identity: str, numbers: Iterable[int]) -> None:
        groups: dict[ShareGroup, None] = {}
        for number in reversed(tuple(numbers)):
            loan = self.loans.get(number)
            if loan is not None and loan.identity == identity:
                del self.loans[number]
                self._attempts.renew(number, loan.attempt + 1)
                self.returned += loan.queue.give_back(loan.kept)
                groups[loan.group] = None
        for group in groups:
            self._shares.wake(group)

    # What is not heard of

    def note_held(self, identity: str, numbers: Iterable[int]) -> None:
        """A broker has these, which was not known."""
        for number in numbers:
            loan = self.loans.get(number)
            if loan is not None and not loan.identity:
                self.loans[number] = loan._replace(identity=identity)

    def on_heard(self, identity: str) -> None:
        """A broker that was silent answers again."""
        for room in self._rooms_of(identity):
            if room.is_silent:
                room.forget(self._host.now(), is_silent=False)
        for full_filter, one in self._rooms:
            group = self._broker.router.group(full_filter) if one == identity else None
            if group is not None and group.is_waiting:
                self.on_waiting(group)

    def on_silent(self, identity: str) -> None:
        """A broker does not answer: nothing is lent to it until it does."""
        for room in self._rooms_of(identity):
            room.forget(self._host.now(), is_silent=True)

    def on_parted(self, address: Address) -> None:
        """A broker has ended, and said so."""
        identity = self._records.identity_at(address)
        if identity is not None:
            self.on_silent(identity)

    def silent(self) -> list[str]:
        """The brokers that do not answer."""
        return list(dict.fromkeys(identity for (_, identity), room in self._rooms.items() if room.is_silent))

    def _rooms_of(self, identity: str) -> list[MemberRoom]:
        return [room for (_, one), room in self._rooms.items() if one == identity]

    def probe(self) -> None:
        """Brokers without room are tried again after a while, if something waits."""
        now = self._host.now()
        for (full_filter, _), room in self._rooms.items():
            if room.left > 0 or room.is_silent or now - room.heard_at < PROBE_S:
                continue
            group = self._broker.router.group(full_filter)
            if group is not None and group.is_waiting:
                room.forget(now, is_silent=False)
                self.on_waiting(group)
