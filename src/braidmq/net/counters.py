"""What passed between this host and a peer, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    messages_in: int = 0
    messages_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    publications_in: int = 0
    publications_out: int = 0
    publication_bytes_in: int = 0
    publication_bytes_out: int = 0
    """Of these, what the layers above call publications (`NetHost.weigh`); the rest is upkeep."""

    dropped: int = 0
    """Messages for the peer that were not sent: too large, too many, or it could not be reached in time."""

    refused: int = 0
    """Requests that this host answered with a refusal to the peer."""

    reconnects: int = 0
    """Links to the peer after the first."""

    def subtract(self, other: Counters) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) - getattr(other, field.name))

    def add(self, other: Counters) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
