"""One topic on many edges: a broker that has publishers of a processor's topic is one of its homes
(Tanaka et al. 2021, §3 and Fig. 4b).

    a client's publication ──▶ its broker: processed there, over the spool
                                   └──copy──▶ the other homes: put into their spools

Homes find each other by an internal topic, `$spool/<processor>/<cluster>/<topic>`: each of them wants it, and publishes
there what its own clients have said. So who gets what, at most once, in the order of one broker, and again after a cut,
is the braid's to see to; and while there is one home only, nothing leaves it.

A new home asks the others for the spool, and takes it from the one that has most of it. The first messages wait for
that, at most WAIT_S; not at all if nobody else is known to be a home. What came to another home just before it knew of
this one may have missed it: so questions and answers carry what is recent. When another home comes, or can be reached
again, spools are compared, and what differs is fetched.

A home whose publishers have left stays until another one says that it has the spool: then it drops out, and forgets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from braidmq.broker.component_topics import level_of
from braidmq.broker.local_topics import SPOOL_MAIL_PREFIX, SPOOL_PREFIX, SPOOL_PREFIXES
from braidmq.broker.message import Message, Reached
from braidmq.mqtt.wire import string
from braidmq.processing.assignments import HELD_MAX
from braidmq.processing.home import Home
from braidmq.processing.home_feed import HomeFeed
from braidmq.processing.home_messages import (
    CopiedMessages,
    HomeMessage,
    SpoolOffer,
    SpoolPart,
    SpoolRequest,
    SpoolTake,
    decode_home_message,
    encode_home_message,
)
from braidmq.processing.order_clock import OrderClock
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.worker_messages import decode_message, encode_message

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.processing.assignment_store import Key
    from braidmq.processing.context import ProcessingContext

WAIT_S: Final = 1.0
"""How long the first messages of a topic wait for its spool."""
OFFERS_S: Final = 0.25
"""How long offers are waited for, if none is of a full spool."""
ENTRY_S: Final = 10.0
"""How long after a start they wait for that although this broker is not in its braid yet."""
ENTRY_POLL_S: Final = 0.1
COMPARE_S: Final = 1.0
"""How long after another home has come spools are compared: by then it should have what it asked for."""
COMPARED_AT_ONCE: Final = 256
"""How many are compared then; the others so much later."""
ROUNDS_MAX: Final = 3
"""How often a home compares because another one, that has come, has found a difference: there is always one while
messages come."""
LEAVING_AT_ONCE: Final = 256
"""Topics without publishers for which another home is looked for at a time."""
EVERYTHING: Final = "#"
"""Said in place of many filters, those of `$` topics included."""
NAME_BYTES_MAX: Final = 65_535
"""Of the longest topic; one whose internal topic would be longer is not shared."""
ALL: Final = "-"
"""In the place of the cluster: homes are in the whole braid."""

_log = logging.getLogger("braidmq.processing")


class Homes:
    def __init__(self, broker: Broker, context: ProcessingContext, cluster: str | None) -> None:
        """`cluster` is this broker's; None if it is in no braid, and has all spools for itself."""
        self._broker = broker
        self._context = context
        self._cluster = cluster
        self.is_on = cluster is not None
        self.clock = OrderClock()
        self.give: Callable[[ProcessorRunner, QueuedMessage], bool] = _keep
        """Queues a message for its processor, if there is room."""
        self._homes: dict[Key, Home] = {}
        self._by_name: dict[str, Home] = {}
        self._asking: dict[int, Home] = {}
        """By the number of the last question of each."""
        self._stale: dict[str, Home] = {}
        """By internal topic: homes of which another one has come, or may have."""
        self._is_compare_due = False
        self._made_at = context.now()
        self._number = int(self._made_at * 1e6)
        self._anchors: dict[str, str] = {}
        """By the processors whose spools are shared: what their internal topics begin with."""

    def __len__(self) -> int:
        return len(self._homes)

    def count(self, processor: str) -> int:
        """Of the topics of a processor."""
        return sum([name == processor for name, _ in self._homes])

    def __contains__(self, key: Key) -> bool:
        return key in self._homes

    def feed_for(self, topic: str) -> HomeFeed | None:
        return HomeFeed(self.on_foreign, topic) if self.is_on and topic.startswith(SPOOL_PREFIXES) else None

    def stand(self, runner: ProcessorRunner) -> None:
        """A processor is there whose spools may be shared: this broker is found where others look for its topics, and
        can be written to. The first message of a topic has not to wait for that."""
        if not self.is_on or runner.spool_scope == "site" or runner.name in self._anchors:
            return
        if not self._anchors:
            self._broker.router.hold(_mail_of(self._context.origin))
        anchor = self._anchors[runner.name] = self._anchor_of(runner)
        self._broker.router.hold(anchor)
        self._await_entry()

    def _await_entry(self) -> None:
        """Meets the other homes as soon as this broker is in its braid."""
        if not self._anchors:
            return
        if not self._broker.federation.has_entered:
            self._broker.timers.at(self._context.now() + ENTRY_POLL_S, self._await_entry)
            return
        self._advertise()
        for home in list(self._homes.values()):
            self._meet(home)

    def _advertise(self) -> None:
        for anchor in self._anchors.values():
            self._broker.federation.outbound_for(anchor)

    def _anchor_of(self, runner: ProcessorRunner) -> str:
        cluster = level_of(self._cluster) if self._cluster and runner.spool_scope == "cluster" else ALL
        return f"{SPOOL_PREFIX}{runner.name}/{cluster}"

    # Messages of clients here

    def home_of(self, runner: ProcessorRunner, topic: str) -> Home | None:
        """The home of a topic of which a message has come; None if its spool is this broker's alone."""
        if not self.is_on or runner.spool_scope == "site":
            return None
        return self._homes.get((runner.name, topic)) or self._begin(runner, topic)

    def _begin(self, runner: ProcessorRunner, topic: str) -> Home | None:
        name = self._name_of(runner, topic)
        if name is None:
            return None
        home = Home(runner, topic, name)
        self._homes[home.key] = self._by_name[name] = home
        self._broker.router.hold(name)
        now = self._context.now()
        if state := home.state:
            self.clock.follow(decode_message(state[-1]).received_at, now)
        home.timer = self._broker.timers.at(now + WAIT_S, partial(self._go_on, home))
        if self._broker.federation.has_entered:
            self._meet(home)
        elif now > self._made_at + ENTRY_S:
            self._go_on(home)
        return home

    def _meet(self, home: Home) -> None:
        self._ask(home)
        names = [home.name, _mail_of(self._context.origin)]
        self._broker.federation.when_effective(names, partial(self._ask_again, home))

    def _name_of(self, runner: ProcessorRunner, topic: str) -> str | None:
        name = f"{self._anchor_of(runner)}/{topic}"
        return name if len(name.encode()) <= NAME_BYTES_MAX else None

    def hold(self, home: Home, item: QueuedMessage) -> None:
        """Keeps a message until the spool is here."""
        assert home.held is not None
        home.held.append(item)
        if len(home.held) >= HELD_MAX:
            self._go_on(home)

    def copy(self, runner: ProcessorRunner, item: QueuedMessage) -> None:
        """A message of a client here was taken, here or by Spark, and does not wait: the other homes get it."""
        if not self.is_on or runner.spool_scope == "site":
            return
        home = self._homes.get((runner.name, item.topic))
        name = self._name_of(runner, item.topic) if home is None else home.name
        if name is None:
            return
        reached = self._send(_message(name, CopiedMessages([msgspec.Raw(item.raw)]), min(item.qos, 1)))
        runner.counts.copies_out += reached is Reached.SOMEBODY

    def _send(self, message: Message) -> Reached:
        reached = self._broker.federation.send(message, False)
        self._broker.request_flush()
        return reached

    # The spool of a new home

    def _ask_again(self, home: Home) -> None:
        """All others know of this home now: what they have said before may be missing."""
        if self._homes.get(home.key) is home:
            self._ask(home, is_comparing=home.held is None)

    def _ask(self, home: Home, is_comparing: bool = False) -> None:
        """Asks who has the spool; or, if it is here, whether anything of it is missing."""
        self._asking.pop(home.number, None)
        self._number += 1
        home.number = self._number
        self._asking[home.number] = home
        origin, now = self._context.origin, self._context.now()
        home.is_comparing = is_comparing
        home.is_late = home.is_taken = False
        digest = home.digest() if is_comparing else 0
        message = _message(home.name, SpoolRequest(home.number, origin, digest, home.recent(origin, now)), 0)
        reached = self._send(message)
        if reached is Reached.NOBODY:
            self._go_on(home)
            return
        if reached is Reached.UNKNOWN:
            self._broker.federation.when_known(message, partial(self._on_known, home))
        if not is_comparing:
            self._broker.timers.at(now + OFFERS_S, partial(self._choose, home, home.number))

    def _on_known(self, home: Home, is_wanted: bool) -> None:
        if not is_wanted:
            self._go_on(home)

    def _choose(self, home: Home, number: int) -> None:
        """Takes the fullest of the spools that were offered."""
        if home.number != number or home.is_taken:
            return
        home.is_late = True
        offers = [offer for offer in home.offers if offer.number == number]
        best = max(offers, key=lambda offer: offer.count, default=None)
        if best is not None:
            self._take(home, best)

    def _take(self, home: Home, offer: SpoolOffer) -> None:
        home.is_taken = not home.is_comparing
        home.offers = []
        if offer.count:
            self._send(_message(_mail_of(offer.origin), SpoolTake(home.number, self._context.origin, home.name), 0))
        else:
            self._go_on(home)

    def _go_on(self, home: Home) -> None:
        """The wait is over: what was held is processed, over the spool as it is, as if it came now."""
        if home.held is None:
            return
        if home.fetched:
            self._merge(home)
        if home.timer is not None:
            home.timer.cancel()
        held, home.held = home.held, None
        for item in held:
            if not item.is_copy:
                self._stamp_again(item)
                self.copy(home.runner, item)
            home.runner.put(item)

    def _stamp_again(self, item: QueuedMessage) -> None:
        """It stands behind what has come while it was held, and which nobody processes here."""
        one = decode_message(item.raw)
        item.raw = encode_message(replace(one, received_at=self.clock.stamp(round(self._context.now(), 6))))

    def _merge(self, home: Home) -> None:
        now = self._context.now()
        if home.fetched:
            self.clock.follow(decode_message(home.fetched[-1]).received_at, now)
        if not home.merge():
            fetched, home.fetched = home.fetched, []
            for raw in fetched:
                self._put_copy(home, raw, 1)
        assignment = self._context.assignments.get(home.key)
        if assignment is not None:
            self._context.assignments.note_size(assignment, home.runner.queue)

    # Homes that come, or are reached again

    def on_wants(self, topic_filter: str) -> None:
        """Another broker begins, or ceases, to want what a filter matches; or many have changed what they want."""
        if topic_filter == EVERYTHING or topic_filter.startswith(SPOOL_MAIL_PREFIX):
            found = list(self._by_name.values())
        elif topic_filter in self._by_name:
            found = [self._by_name[topic_filter]]
        else:
            return
        for home in found:
            home.rounds = ROUNDS_MAX
            self._compare_later(home)

    def _compare_later(self, home: Home) -> None:
        self._stale[home.name] = home
        if not self._is_compare_due:
            self._is_compare_due = True
            self._broker.timers.at(self._context.now() + COMPARE_S, self._compare)

    def _compare(self) -> None:
        """Asks whether anything of some spools is missing: what others got while they could not be reached, or before
        they knew of this home."""
        self._is_compare_due = False
        for name in list(self._stale)[:COMPARED_AT_ONCE]:
            home = self._stale.pop(name)
            if self._by_name.get(name) is home and home.held is None:
                self._ask(home, is_comparing=True)
        for home in list(self._stale.values())[:1]:
            self._compare_later(home)

    # What other homes say

    def on_foreign(self, message: Message) -> None:
        try:
            said = decode_home_message(message.payload)
            if isinstance(said, CopiedMessages | SpoolRequest):
                home = self._by_name.get(message.topic)
            elif isinstance(said, SpoolTake):
                home = self._by_name.get(said.name)
            else:
                home = self._asking.get(said.number)
            if home is not None:
                self._on_said(home, said, message.qos)
        except msgspec.MsgspecError as error:
            _log.warning("a broker said something on %s that no home says: %s", message.topic, error)

    def _on_said(self, home: Home, said: HomeMessage, qos: int) -> None:
        if isinstance(said, CopiedMessages):
            home.runner.counts.copies_in += len(said.messages)
            for raw in said.messages:
                self._put_copy(home, bytes(raw), qos)
        elif isinstance(said, SpoolRequest):
            self._on_ask(home, said)
        elif isinstance(said, SpoolOffer):
            self._on_offer(home, said)
        elif isinstance(said, SpoolTake):
            pieces = home.parts()
            for number, piece in enumerate(pieces, 1):
                self._send(_message(_mail_of(said.asker), SpoolPart(said.number, len(pieces) - number, piece), 0))
        else:
            home.fetched.extend([bytes(raw) for raw in said.messages])
            if home.held is None:
                self._merge(home)
            elif not said.left:
                self._go_on(home)

    def _put_copy(self, home: Home, raw: bytes, qos: int) -> None:
        """A message that came to another broker."""
        one = decode_message(raw)
        if one.topic != home.topic:
            return
        self.clock.follow(one.received_at, self._context.now())
        item = QueuedMessage(one.topic, raw, one.offset, qos, 0, is_copy=True)
        if home.held is None:
            self.give(home.runner, item)
        else:
            self.hold(home, item)

    def _on_ask(self, home: Home, ask: SpoolRequest) -> None:
        origin = self._context.origin
        recent = home.recent(origin, self._context.now())
        offer = SpoolOffer(ask.number, origin, len(home.state), self._publishers(home), home.digest(), recent)
        self._send(_message(_mail_of(ask.asker), offer, 0))
        if ask.digest and ask.digest != offer.digest and home.rounds:
            home.rounds -= 1
            self._compare_later(home)
        for raw in ask.recent:
            self._put_copy(home, bytes(raw), 1)

    def _on_offer(self, home: Home, offer: SpoolOffer) -> None:
        for raw in offer.recent:
            self._put_copy(home, bytes(raw), 1)
        if not self._publishers(home) and home.held is None:
            if offer.publishers or offer.origin < self._context.origin:
                self._drop_out(home)
        elif home.is_comparing:
            if offer.digest != home.digest():
                self._take(home, offer)
        elif not home.is_taken:
            home.offers.append(offer)
            if home.is_late or offer.count >= home.runner.queue.spool:
                self._take(home, offer)

    # The end of a home

    def _publishers(self, home: Home) -> int:
        assignment = self._context.assignments.get(home.key)
        return 0 if assignment is None else len(assignment.publishers)

    def sweep(self) -> None:
        """Looks for topics whose publishers have left, or that are not processed here any more."""
        asked = 0
        for home in list(self._homes.values()):
            assignment = self._context.assignments.get(home.key)
            if assignment is None or assignment.location != "edge":
                self.leave(home.key)
            elif not assignment.publishers and home.held is None and asked < LEAVING_AT_ONCE:
                asked += 1
                self._homes[home.key] = self._homes.pop(home.key)  # others have their turn next time
                self._ask(home, is_comparing=True)
        self._advertise()

    def leave(self, key: Key) -> None:
        """The topic is not processed here any more, or without other homes."""
        home = self._homes.get(key)
        if home is None:
            return
        self._go_on(home)
        del self._homes[key], self._by_name[home.name]
        self._asking.pop(home.number, None)
        self._broker.router.release(home.name)

    def leave_all(self, name: str) -> None:
        """A processor is not there any more, or in another way."""
        for key in [one for one in self._homes if one[0] == name]:
            self.leave(key)
        anchor = self._anchors.pop(name, None)
        if anchor is not None:
            self._broker.router.release(anchor)
            if not self._anchors:
                self._broker.router.release(_mail_of(self._context.origin))

    def _drop_out(self, home: Home) -> None:
        """Another broker has the spool, and this one has no publishers."""
        self.leave(home.key)
        assignments = self._context.assignments
        assignment = assignments.get(home.key)
        if assignment is not None and not assignment.is_changing and not home.runner.queue.has(home.topic):
            assignments.forget(assignment)
            home.runner.forget(home.topic)


def _mail_of(origin: str) -> str:
    return SPOOL_MAIL_PREFIX + level_of(origin)


def _message(name: str, said: HomeMessage, qos: int) -> Message:
    return Message(name, string(name), encode_home_message(said), qos)


def _keep(runner: ProcessorRunner, item: QueuedMessage) -> bool:
    runner.put(item)
    return True
