"""How much a host may hold and how long it may wait: every bound of `net`, by name."""

from __future__ import annotations

from dataclasses import dataclass, fields

FRAME_BYTES_MIN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    frame_bytes_max: int = 16 * 1024 * 1024
    """A larger frame closes its link, a larger message is not sent. The same in all hosts of a network."""

    frame_messages_max: int = 65_536
    """Messages in one frame. The same in all hosts of a network."""

    queue_bytes_max: int = 64 * 1024 * 1024
    """Bytes that wait for one peer. Above it `send` drops, and counts it; `call` raises CallRefused."""

    passed_bytes_max: int = 8 * 1024 * 1024
    """Bytes that may wait for a peer while something is passed on to it for another; above it that is dropped."""

    local_max: int = 65_536
    """Messages that wait from a host to itself; above it as with `queue_bytes_max`."""

    calls_max: int = 65_536
    """Calls that wait for an answer; one more raises CallRefused."""

    links_max: int = 1_024
    """Peers that are known at a time, linked or not."""

    strangers_max: int = 64
    """Accepted connections that have not said hello, or not shown what they must; for one more the oldest goes."""

    hops_max: int = 1_000
    """A message that was passed on so often goes round: it is refused, or dropped if nobody waits for it."""

    connect_timeout_s: float = 5.0
    """For TCP, TLS and hello together."""

    wait_s_max: float = 5.0
    """How long a message waits for a peer that cannot be reached, before it is dropped and counted."""

    backoff_s_min: float = 0.05
    """The wait after the first failure to connect. It doubles with each further one …"""

    backoff_s_max: float = 5.0
    """… up to this. A link that lasted so long begins anew with the shortest."""

    notice_s: float = 60.0
    """How often it is told of a peer that it was lost, or why it was refused, if that happens again and again."""

    idle_s_max: float = 300.0
    """A link on which nothing passes for so long is closed; the next message opens it again."""

    stall_s_max: float = 30.0
    """A peer that takes nothing for so long, though something waits for it, loses its link."""

    close_s_max: float = 2.0
    """How long the last bytes of a link may take before it is cut."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be more than 0")
        if self.frame_bytes_max < FRAME_BYTES_MIN:
            raise ValueError(f"frame_bytes_max must be at least {FRAME_BYTES_MIN}")
        if self.backoff_s_max < self.backoff_s_min:
            raise ValueError("backoff_s_max must not be less than backoff_s_min")

    @property
    def sweep_s(self) -> float:
        """How often what has lasted too long is looked for."""
        spans = (self.connect_timeout_s, self.idle_s_max, self.stall_s_max, self.close_s_max)
        return min(1.0, *(span / 4 for span in spans))
