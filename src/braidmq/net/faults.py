"""What can be wrong with a link or with what came over it. Each is logged, counted, and closes that link alone."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    GARBAGE = "garbage"
    """Bytes that are no hello or no frame."""

    VERSION = "version"
    """Another version of the protocol."""

    SECURITY = "security"
    """Another kind of security, another braid key, or none; or none at all where there must be some."""

    SEAL = "seal"
    """A frame that was not sealed as the next one of its link."""

    ADDRESS = "address"
    """A hello with an address that is none, or not the sender's."""

    TERMS = "terms"
    """Another delivery method, or something else that all hosts of a braid must have the same."""

    NAME = "name"
    """A name, or an identity, that another host has."""

    REFUSED = "refused"
    """The other side has closed it, and said why."""

    SELF = "self"
    """This very host at the other end."""

    OVERSIZE = "oversize"
    """A frame above `frame_bytes_max` or `frame_messages_max`."""

    MESSAGE = "message"
    """A message that this host does not know, or whose fields are not what they should be."""

    TLS = "tls"
    """A handshake that failed."""

    TIMEOUT = "timeout"
    """No hello in time."""

    STALL = "stall"
    """A peer that takes nothing."""

    CROWD = "crowd"
    """More strangers or peers than there is room for."""

    HANDLER = "handler"
    """A handler that raised; the link lives on."""

    PROCEDURE = "procedure"
    """A spawned procedure that raised; no link is concerned."""


TEXT_LENGTH_MAX = 300


class LinkError(Exception):
    """Why a link is closed: one line, of which parts may be the peer's."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else "?" for sign in text[:TEXT_LENGTH_MAX]))
        self.fault = fault
