"""What a broker knows of the clients that it has, awaits or has had: shared by taking sessions and giving them up."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.epochs import SessionEpochs
from braidmq.braid.roaming.messages import GiveUp, GiveUpAnswer
from braidmq.broker.admission import Arrived
from braidmq.broker.session import Session
from braidmq.host import Event, Host
from braidmq.security.identity import is_foreign

SERVED_MAX = 100_000
"""Clients that are remembered after their session has ended or moved."""


class Served(NamedTuple):
    """When a client has connected here, and whether it wanted nothing of its session."""

    at: float
    clean: bool


class Arrival:
    """A CONNECT that waits for its session. `done` says whether the client is still there, and served now."""

    def __init__(
        self,
        host: Host,
        client_id: str,
        user: str,
        clean: bool,
        done: Callable[[Arrived], bool],
        is_pushed: bool = False,
    ) -> None:
        """`is_pushed` if there is no client: another broker wants to give its session away."""
        self.client_id = client_id
        self.is_pushed = is_pushed
        self.user = user
        self.owner: str | None = user
        """Whose the session will be; None if that was not written down where it comes from."""
        self.clean = clean
        self.is_contested = False
        """Whether the session may be another user's: then the client is not served before that is known."""
        self.epoch = 0
        self.holder: SessionHolder | None = None
        """The broker that had the session, if the directory was late to say so."""
        self.own_epoch = 0
        """Of the session that was at this broker when the client came; 0 if there was none."""
        self.began_at = host.now()
        self.ends_at = 0.0
        self.is_late = False
        """The client was served before its session had come."""
        self.is_lost = False
        """It is not served here, since it is elsewhere."""
        self.through = host.event()
        """Its session has been brought here, or will not be: the next CONNECT with this client id may begin."""
        self._host = host
        self._done: Callable[[Arrived], bool] | None = done

    @property
    def is_over(self) -> bool:
        return self._done is None

    def extend(self, seconds: float) -> None:
        """The client waits for so long from now on."""
        self.ends_at = self._host.now() + seconds

    def end(self, arrived: Arrived) -> bool:
        done, self._done = self._done, None
        return done is not None and done(arrived)


class ClientRecords:
    def __init__(self) -> None:
        self.epochs = SessionEpochs()
        """Of the clients that this broker holds."""
        self.arriving: dict[str, Arrival] = {}
        self.came_from: dict[str, str] = {}
        """By client id: the broker from which its session came."""
        self.served: BoundedDict[str, Served] = BoundedDict(SERVED_MAX)
        """Clients that have connected here in this incarnation of the broker, and have not gone elsewhere since."""
        self.displaced: dict[str, Session] = {}
        """Sessions whose client is elsewhere: out of the subscriptions, until they are fetched."""
        self.displaced_by: dict[str, SessionHolder] = {}
        """Where their clients were when they were set aside."""
        self.pushed: dict[str, Event] = {}
        """Sessions that another broker was asked to take. It happens when they have gone, or that broker gives up."""

    def is_displaced(self, client_id: str) -> bool:
        return client_id in self.displaced

    def newer_than_here(self, client_id: str) -> SessionHolder | None:
        """The broker that has a newer session than the one here, if that is set aside."""
        return self.displaced_by.get(client_id) if client_id in self.displaced else None

    def is_coming_for_another(self, client_id: str, user: str) -> bool:
        """Whether a session of a client id is just coming here, for another user than this one."""
        arrival = self.arriving.get(client_id)
        return arrival is not None and not arrival.is_contested and is_foreign(arrival.user, user)

    def refusal_of(self, asked: GiveUp) -> GiveUpAnswer | None:
        """The answer to a broker that wants a session that is just coming here, or came here later; None if neither."""
        client_id = asked.client_id
        arrival = self.arriving.get(client_id)
        if self.epochs.get(client_id, 0) > asked.epoch:
            return GiveUpAnswer.NEWER
        if arrival is not None:
            if arrival.epoch:
                self.lose(arrival, Arrived.ELSEWHERE)
            return GiveUpAnswer.BUSY
        self.came_from.pop(client_id, None)
        return None

    def lose(self, arrival: Arrival, arrived: Arrived) -> None:
        """The client is not served here: it has come to another broker since, or may not have the session. One that was
        here before is as old as it was."""
        if arrival.own_epoch:
            self.epochs[arrival.client_id] = arrival.own_epoch
        else:
            self.epochs.drop(arrival.client_id)
        arrival.is_lost = True
        arrival.end(arrived)

    def forget_all_but(self, sessions: Container[str]) -> None:
        """Clients without a session, here or on its way, are not this broker's any more."""
        for client_id in [one for one in self.epochs if one not in sessions and one not in self.arriving]:
            del self.epochs[client_id]
        for client_id in [one for one in self.came_from if one not in sessions and one not in self.arriving]:
            del self.came_from[client_id]
        for client_id in [one for one in self.displaced_by if one not in self.displaced]:
            del self.displaced_by[client_id]
