"""Shared subscriptions as one group in the whole braid: the parts of it, put together.

Messages stay at the broker where they were published until they are bound to a member that can take them. All brokers
know who has members of which group (`group_records`); what no member here can take is lent to another broker's
(`lending`, and there `borrowing`).
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.braid.membership.presence import Presence
from braidmq.braid.shares.borrowing import Borrower
from braidmq.braid.shares.group_announcing import GroupAnnouncer
from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.shares.lending import Lender
from braidmq.braid.shares.loan_checks import LoanChecks
from braidmq.braid.shares.outbox import Outbox
from braidmq.braid.shares.queue_adoption import QueueAdoption
from braidmq.broker.broker import Broker
from braidmq.broker.member_load import MemberLoad
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup
from braidmq.host import Host
from braidmq.mqtt.topics import SHARE_PREFIX


class ShareParts:
    def __init__(self, broker: Broker, host: Host, presence: Presence, identity: str, cluster: str) -> None:
        self._broker = broker
        self.cluster = cluster
        self.records = GroupRecords(identity, cluster, broker.store, broker.saved_cursors)
        self.records.on_saved = broker.request_flush
        self.announcer = GroupAnnouncer(broker, host, presence, self.records)
        self.outbox = Outbox(broker, host)
        self.lender = Lender(broker, host, self.records, identity, cluster, self.outbox)
        self.checks = LoanChecks(broker, host, self.records, self.lender)
        self.borrower = Borrower(broker, host, identity, cluster, self.outbox)
        self.adoption = QueueAdoption(broker, host, self.lender, self.checks, self.borrower)

    def begin(self) -> None:
        """All parts are joined: what an earlier process left is taken up."""
        self.records.learn(self.records.restored)
        for group in self._broker.router.groups():
            self.announcer.on_group(group)

    def enter(self) -> None:
        self.announcer.enter()
        self.checks.start()

    def on_free(self, group: ShareGroup) -> bool:
        return self.borrower.on_free(group)

    def on_load(self, session: Session, component: str, load: MemberLoad) -> None:
        """A client says how it is, as a member of all groups of this name."""
        router = self._broker.router
        prefix = f"{SHARE_PREFIX}{component}/"
        for group in [router.group(one) for one in session.subscriptions if one.startswith(prefix)]:
            if group is not None and session in group.members and group.loads.get(session) != load:
                group.loads[session] = load
                self.announcer.on_group(group)
        self._broker.sessions.shares.on_free(session)

    # The tick

    @property
    def has_output(self) -> bool:
        return bool(self.outbox) or self.borrower.has_news

    def before_commit(self) -> None:
        self.lender.dispatch()

    def take(self) -> Callable[[], None]:
        """The end of a tick, after the commit: what is to be told leaves when this is called."""
        self.borrower.tell()
        return self.outbox.take()

    def flush(self) -> None:
        if self.has_output:
            self.take()()
