"""A client's identity: what it shows when it connects, and what the broker concludes from it.

`Credentials` is all that an authenticator may look at. Its verdict is an `Identity` (let in, as this user), a `Refusal`
(kept out, with the CONNACK reason) or None (not mine to judge: ask the next authenticator).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from braidmq.mqtt.reasons import Reason


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection came in: the listener's name, the peer's address, and its verified certificate, if any."""

    listener: str = "local"
    peer: str = ""
    common_name: str | None = None
    alternative_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credentials:
    client_id: str
    username: str | None
    password: bytes | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Identity:
    """A client that was let in: `user` is None for an anonymous one; at `expires_at` (Unix time) it must leave."""

    user: str | None = None
    expires_at: float | None = None

    @property
    def owner(self) -> str:
        """The user to whom a session of this client belongs; "" for an anonymous one."""
        return self.user or ""


def is_foreign(owner: str | None, user: str) -> bool:
    """Whether a session of an owner is closed to a user. One without a known owner is open to every user."""
    return bool(owner) and owner != user


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason = Reason.NOT_AUTHORIZED
    text: str = ""


ANONYMOUS = Identity()

Verdict = Identity | Refusal | None


class Authenticator(Protocol):
    """Judges credentials, at once or (hashing, network) later: then it returns an awaitable."""

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Challenge:
    """One step of an enhanced authentication exchange: the data of the AUTH packet to send next."""

    data: bytes


class Exchange(Protocol):
    """One enhanced authentication under way (MQTT 5 §4.12); `step` takes the client's data, None if it sent none."""

    def step(self, data: bytes | None) -> Challenge | Identity | Refusal: ...

    @property
    def final_data(self) -> bytes | None: ...


class AuthenticationMethod(Protocol):
    """An enhanced authentication method, known to clients by its name."""

    name: str

    def begin(self, credentials: Credentials) -> Exchange: ...


class Access(Protocol):
    """What an identity may do. Asked off the fast path: the answers for topics in use are remembered a connection."""

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool: ...

    def may_will(self, identity: Identity, client_id: str, topic: str) -> bool: ...

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool: ...

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        """True if every publication would be allowed, so that none needs to be asked about."""
        ...


class OpenAccess:
    """Everybody may do everything."""

    def may_publish(self, _identity: Identity, _client_id: str, _topic: str) -> bool:
        return True

    def may_subscribe(self, _identity: Identity, _client_id: str, _topic_filter: str) -> bool:
        return True

    def may_will(self, _identity: Identity, _client_id: str, _topic: str) -> bool:
        return True

    def unrestricted(self, _identity: Identity, _client_id: str) -> bool:
        return True


class ClientIds(Protocol):
    """Whose a client identifier is. Asked when a client connects.

    A session belongs to the user who made it: another user who comes with its client identifier is refused, and its
    owner is not disturbed. What anonymous clients leave behind has no owner: any user may go on with it, as far as
    the access rules let that user read.
    """

    starts_fresh: bool
    """Whether a session of another user who is not connected ends, and the new client begins with nothing of it."""

    def allows(self, identity: Identity, origin: Origin, client_id: str) -> bool:
        """Whether this user may connect with a client identifier that it has chosen itself."""
        ...


class FreeClientIds:
    """Every user may use any identifier that is free."""

    starts_fresh = False

    def allows(self, _identity: Identity, _origin: Origin, _client_id: str) -> bool:
        return True
