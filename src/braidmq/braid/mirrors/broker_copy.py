"""The copy of what another broker has, as those see it that act for that broker when it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from braidmq.braid.mirrors.copied_sessions import CopiedSessions
from braidmq.broker.store import Snapshot
from braidmq.host import Address


class BrokerCopy(Protocol):
    """The copy of what another broker has."""

    @property
    def owner(self) -> str: ...

    @property
    def address(self) -> Address:
        """Where the broker was last."""
        ...

    @property
    def term(self) -> int:
        """Of two copies of one broker the one with the higher term counts."""
        ...

    @property
    def heard_at(self) -> float:
        """When the broker was last heard from, by the host's clock."""
        ...

    @property
    def is_streaming(self) -> bool:
        """Whether it was heard from just now."""
        ...

    def snapshot(self) -> Snapshot: ...

    def sessions(self) -> CopiedSessions:
        """Those in the snapshot, put in order once."""
        ...


class BrokerCopies(Protocol):
    def get(self, owner: str) -> BrokerCopy | None: ...
    def __iter__(self) -> Iterator[BrokerCopy]: ...
