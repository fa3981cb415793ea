"""What other brokers lend to the members here: each message goes to one that can take it, and its broker is told what
becomes of it.

At QoS 1 nothing is written here: the message is kept where it came from until the member has acknowledged it. At QoS 2
it is taken into the member's session for good, and it is written that it was, before the member gets it: so whoever
asks again learns that, also after a crash.
"""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.interest.scope import may_see
from braidmq.braid.shares.messages import AskLoans, Assign, Assigned, ForgetTaken, LentMessage, LoansKnown
from braidmq.braid.shares.outbox import Outbox
from braidmq.braid.transfer.batch import message_of
from braidmq.broker.broker import Broker
from braidmq.broker.message import Message
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, Reply, Service, handles

TAKEN: Final = "$taken/"
"""What the store's rows of messages that were taken for good begin with, among the cursors; the number follows."""

TAKEN_S: Final = 86_400.0
"""How long it is remembered that a message was taken, if its broker does not say that it knows."""

TAKEN_MAX: Final = 100_000
"""Messages of which that is remembered."""

ENDED_MAX: Final = 65_536
"""Messages of which it is remembered that a member has acknowledged them; and that they are not taken any more."""


class BorrowedLoan:
    """A message of another broker that a member here has."""

    __slots__ = ("_borrower", "full_filter", "number", "origin")

    def __init__(self, borrower: Borrower, number: int, origin: Address, full_filter: str) -> None:
        self._borrower = borrower
        self.number = number
        self.origin = origin
        self.full_filter = full_filter

    def settle(self) -> None:
        self._borrower.on_settled(self)

    def give_back(self) -> None:
        self._borrower.on_given_back(self)


class _News:
    """What a broker is to be told of one group."""

    __slots__ = ("batch", "granted", "returned", "settled", "share")

    def __init__(self) -> None:
        self.batch = 0
        self.settled: list[int] = []
        self.returned: list[int] = []
        self.share = 1
        """Among how many brokers the room here is divided."""
        self.granted = 0
        """What is reserved for it, though something waits here."""


class Borrower(Service):
    def __init__(self, broker: Broker, host: Host, identity: str, cluster: str, outbox: Outbox) -> None:
        self._broker = broker
        self._host = host
        self._identity = identity
        self._cluster = cluster
        self._outbox = outbox
        self._shares = broker.sessions.shares
        self._held: dict[int, BorrowedLoan] = {}
        """By number: what a member has not acknowledged yet."""
        self._settled: BoundedDict[int, None] = BoundedDict(ENDED_MAX)
        """What members have acknowledged, by number."""
        self._void: BoundedDict[int, int] = BoundedDict(ENDED_MAX)
        """By number: up to which attempt it is not to be taken any more."""
        self._taken: dict[int, float] = {}
        """By number: when it was taken for good (Unix time)."""
        self._news: dict[tuple[Address, str], _News] = {}
        self._wanting: dict[str, dict[Address, int]] = {}
        """By filter: brokers that want to know when a member here is free, and the last batch of each."""
        self._is_turn_here = False
        for key, row in broker.saved_cursors:
            if key.startswith(TAKEN):
                self._taken[int(key.removeprefix(TAKEN))] = msgspec.msgpack.decode(row, type=float)
        host.serve(self)

    # What comes

    @handles(Assign)
    def on_assign(self, origin: Address, told: Assign) -> Reply:
        group = self._broker.router.group(told.full_filter)
        news = self._news_for(origin, told.full_filter) if told.batch else None
        for job in told.jobs:
            message = message_of(job.item, job.topic, self._broker.now())
            if news is None:
                self._give_unsure(message, group)
            elif job.number in self._taken or job.number in self._settled:
                news.settled.append(job.number)
            elif job.number not in self._held and not self._give(origin, job, message, group):
                news.returned.append(job.number)
        if news is not None:
            news.batch = max(news.batch, told.batch)
        self._broker.request_flush()
        return None

    def _give(self, origin: Address, job: LentMessage, message: Message, group: ShareGroup | None) -> bool:
        """Gives a message to a member, if one can take it and it is not too late."""
        if (
            group is None
            or job.attempt <= self._void.get(job.number, -1)
            or not may_see(self._cluster, message.forward)
        ):
            return False
        is_taken = group.is_waiting and group.is_near and not group.reserved
        session = None if is_taken else group.choose(message)
        if session is None:
            return False
        group.reserved = max(0, group.reserved - 1)
        loan = BorrowedLoan(self, job.number, origin, group.full_filter)
        self._held[job.number] = loan
        qos = self._shares.lend(message, group, session, loan)
        if qos == 2:
            self.note_taken(job.number)
            self._broker.tick.took_once = True
            if session.connection is not None:
                session.connection.awaits_commit = True
        if qos != 1:
            self.on_settled(loan)
        return True

    def _give_unsure(self, message: Message, group: ShareGroup | None) -> None:
        """Gives a message of QoS 0 to a member: if none is free, to one that is busy."""
        session = None
        if group is not None and may_see(self._cluster, message.forward):
            session = group.choose(message) or group.choose_busy(message.size)
        if group is None or session is None:
            self._broker.metrics.messages_dropped += 1
        else:
            self._shares.give(message, group, session)

    @property
    def taken_count(self) -> int:
        """Of how many messages it is remembered that they were taken for good."""
        return len(self._taken)

    def has_taken(self, number: int) -> bool:
        return number in self._taken

    def note_taken(self, number: int) -> None:
        """Writes that a message is here for good."""
        while len(self._taken) >= TAKEN_MAX:
            self._forget(next(iter(self._taken)))
        self._taken[number] = now = self._broker.now()
        self._broker.store.save_cursor(f"{TAKEN}{number}", msgspec.msgpack.encode(now))

    # What becomes of it

    def _news_for(self, origin: Address, full_filter: str) -> _News:
        key = (origin, full_filter)
        news = self._news.get(key)
        if news is None:
            news = self._news[key] = _News()
            self._broker.request_flush()
        return news

    def on_settled(self, loan: BorrowedLoan) -> None:
        if self._held.pop(loan.number, None) is not None:
            self._settled.renew(loan.number, None)
            self._news_for(loan.origin, loan.full_filter).settled.append(loan.number)

    def on_given_back(self, loan: BorrowedLoan) -> None:
        if self._held.pop(loan.number, None) is not None:
            self._news_for(loan.origin, loan.full_filter).returned.insert(0, loan.number)  # the last comes first

    def on_free(self, group: ShareGroup) -> bool:
        """Members here can take more: brokers that wait for that are told. Whether any are left."""
        wanting = self._wanting.get(group.full_filter)
        if wanting and group.offered > 0:
            del self._wanting[group.full_filter]
            for origin, batch in wanting.items():
                news = self._news_for(origin, group.full_filter)
                news.batch, news.share = max(news.batch, batch), len(wanting)
        return group.full_filter in self._wanting

    def reserve(self, group: ShareGroup) -> int:
        """Something waits here: every other time a broker that waits for members here has its turn. For how many."""
        wanting = self._wanting.get(group.full_filter)
        free = group.free_here
        if not wanting or not free:
            return 0
        self._is_turn_here = not self._is_turn_here
        if self._is_turn_here:
            return 0
        origin, batch = next(iter(wanting.items()))
        del wanting[origin]
        count = max(1, free // (1 + len(wanting)))
        news = self._news_for(origin, group.full_filter)
        news.batch, news.granted = max(news.batch, batch), count
        return count

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def tell(self) -> None:
        """The end of a tick: all that has become of messages is told."""
        news, self._news = self._news, {}
        for (origin, full_filter), one in news.items():
            group = self._broker.router.group(full_filter)
            free = 0 if group is None else one.granted or -(-group.offered // one.share)
            if group is not None and group.policy.name == "hash" and one.returned:
                free = 0  # it is not any member that it waits for
            if not free and group is not None:
                self._wanting.setdefault(full_filter, {})[origin] = one.batch
                self._shares.want_free(group)
            told = Assigned(self._identity, full_filter, one.batch, free, tuple(one.settled), tuple(one.returned))
            if any(number in self._taken for number in one.settled):
                self._outbox.add_when_written(origin, told)
            else:
                self._outbox.add(origin, told)

    # What is asked for

    @handles(AskLoans)
    def on_ask_loans(self, origin: Address, asked: AskLoans) -> Reply:
        held, settled = [], []
        for number, attempt in asked.loans:
            if number in self._held:
                self._held[number].origin = origin
                held.append(number)
            elif number in self._taken or number in self._settled:
                settled.append(number)
            else:
                self._void.renew(number, attempt)
        if any(number in self._taken for number in settled) and self._broker.store.dirty:
            settled, held = [], [*held, *settled]
        return LoansKnown(self._identity, tuple(held), tuple(settled))

    @handles(ForgetTaken)
    def on_forget_taken(self, _origin: Address, told: ForgetTaken) -> Reply:
        for number in told.numbers:
            self._forget(number)
        return None

    def _forget(self, number: int) -> None:
        if self._taken.pop(number, None) is not None:
            self._broker.store.drop_cursor(f"{TAKEN}{number}")
            self._broker.request_flush()

    def expire(self) -> None:
        """Forgets what was taken so long ago that nobody asks for it any more."""
        before = self._broker.now() - TAKEN_S
        for number in [number for number, at in self._taken.items() if at < before]:
            self._forget(number)
