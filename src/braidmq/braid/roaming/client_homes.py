"""Clients that are at home at another broker are told so, and their sessions go there with them.

A plan says where clients are at home (Tanaka et al. 2021, §5.2: home servers). Who is connected here and at home
elsewhere is sent there when the plan is carried out, a few at a time, by MQTT 5's own words: Use another server, with
a Server Reference (§4.11). Who connects here later is told at once, in the CONNACK. Many libraries do not follow: one
that comes back is served here and is not sent away again by the same plan. Clients of 3.1.1 cannot be told, and stay.
Rules of the configuration go before any plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.membership.broker_records import BrokerRecord, BrokerRecords
from braidmq.braid.roaming.messages import TakeAnswer
from braidmq.braid.roaming.sending_away import SendingAway
from braidmq.braid.roaming.takers import reference_of
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.mqtt.packets import V5
from braidmq.mqtt.reasons import Reason

HOMES_MAX = 200_000
"""Clients whose home is known here."""

MOVES_AT_ONCE = 64
"""Sessions that are on their way to their homes at a time."""

RETURN_S = 60.0
"""Who connects here again so soon after it was told to go home does not follow. Later it may have been there."""


class MoveOutcome(Enum):
    """What became of the wish that a client goes home."""

    SENT = "sent"
    """It was told, and its session follows."""
    HOME = "at home"
    """Its home is here, or nobody says that it has another."""
    AWAY = "away"
    """It is not connected here: it is told when it comes."""
    STAYS = "stays"
    """It was told before, and came back."""
    CANNOT_BE_TOLD = "cannot be told"
    """It speaks MQTT 3.1.1, or its home advertises no listener of its kind."""
    NO_HOME = "no home"
    """Its home is not in the braid now, or is being drained."""
    BUSY = "busy"
    """Its session comes or goes already, or too many do."""


class HomeRule(NamedTuple):
    """Clients whose ids match are at home at a broker; or, in plans, those who publish to topics that match."""

    broker: str
    clients: str | None = None
    topic: str | None = None


class ClientHomes:
    def __init__(self, broker: Broker, records: BrokerRecords, sending: SendingAway) -> None:
        self._broker = broker
        self._records = records
        self._sending = sending
        self.rules: Sequence[HomeRule] = ()
        """What the configuration says; the first that fits counts."""
        self.plan = ""
        """The digest of the plan that says where homes are; empty if there is none."""
        self._homes: dict[str, str] = {}
        """By client: the name of the broker where it is at home."""
        self._told: BoundedDict[str, float] = BoundedDict(HOMES_MAX)
        """Clients that were told to go home by this plan, and when."""
        self._staying: BoundedDict[str, None] = BoundedDict(HOMES_MAX)
        """Those that came back at once."""
        self.sent = 0
        self.refused = 0
        """Sessions that their home could not take: they are here as before."""

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def broker(self) -> str:
        """The name of this one."""
        return self._records.name

    @property
    def staying(self) -> int:
        """Clients that were told to go home, and came back."""
        return len(self._staying)

    @property
    def under_way(self) -> int:
        return self._sending.under_way

    def assign(self, plan: str, homes: Mapping[str, str]) -> None:
        """From now on this plan holds, and nothing of an earlier one; none if there are no homes in it."""
        if len(homes) > HOMES_MAX:
            raise ValueError(f"{len(homes):,} homes, and at most {HOMES_MAX:,} are kept")
        if plan != self.plan:
            self._told.clear()
            self._staying.clear()
            self.sent = self.refused = 0
        self.plan = plan
        self._homes = dict(homes)

    def home_of(self, client_id: str) -> str | None:
        """The name of the broker where a client is at home, if anybody says so."""
        return self.pinned_to(client_id) or self._homes.get(client_id)

    def pinned_to(self, client_id: str) -> str | None:
        """Where a rule has a client at home."""
        for rule in self.rules:
            if rule.clients is not None and fnmatchcase(client_id, rule.clients):
                return rule.broker
        return None

    def move(self, client_ids: Iterable[str]) -> dict[str, MoveOutcome]:
        """Sends clients home that are connected here."""
        return {client_id: self._move(client_id) for client_id in client_ids}

    def redirect(self, client_id: str, version: int, listener: str) -> str | None:
        """Where a client that connects here is at home, if it is to go there now."""
        if (not self._homes and not self.rules) or version != V5:
            return None
        home = self._elsewhere(client_id)
        if home is None or client_id in self._staying:
            return None
        if self._broker.now() - self._told.get(client_id, 0.0) < RETURN_S:
            self._staying.add(client_id)
            return None
        reference = self._reference(home, listener)
        if reference is not None:
            self._told.renew(client_id, self._broker.now())
            self.sent += 1
        return reference

    def _move(self, client_id: str) -> MoveOutcome:
        if self.home_of(client_id) in (None, self._records.name):
            return MoveOutcome.HOME
        home = self._elsewhere(client_id)
        if home is None:
            return MoveOutcome.NO_HOME
        session = self._broker.sessions.get(client_id)
        if session is None or session.connection is None:
            return MoveOutcome.AWAY
        if client_id in self._staying:
            return MoveOutcome.STAYS
        reference = self._reference(home, session.connection.origin.listener)
        if session.connection.version != V5 or reference is None:
            return MoveOutcome.CANNOT_BE_TOLD
        if not self._sending.can_send(client_id) or self._sending.under_way >= MOVES_AT_ONCE:
            return MoveOutcome.BUSY
        self._told.renew(client_id, self._broker.now())
        self.sent += 1
        text = f"the home of this client is {home.name}"
        self._sending.send(session, home, Reason.USE_ANOTHER_SERVER, text, reference, self._on_given)
        return MoveOutcome.SENT

    def _elsewhere(self, client_id: str) -> BrokerRecord | None:
        """The broker where a client is at home, if that is another one, which takes clients."""
        name = self.home_of(client_id)
        if name is None or name == self._records.name:
            return None
        return next((one for one in self._records if one.name == name and not one.is_draining), None)

    def _reference(self, home: BrokerRecord, listener: str) -> str | None:
        return reference_of(home, listener, self._sending.kind_of(listener))

    def _on_given(self, session: Session, _taker: BrokerRecord, _answer: TakeAnswer | None) -> None:
        if self._broker.sessions.get(session.client_id) is session:
            self.refused += 1
