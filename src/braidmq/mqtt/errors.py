"""What the other side did wrong, with the reason code that the specification gives it."""

from __future__ import annotations

from braidmq.mqtt.reasons import Reason


class PacketError(Exception):
    """A packet that breaks the rules. `reason` is what to answer (MQTT 5 §4.13), `text` what a person should read."""

    def __init__(self, reason: Reason, text: str, server_reference: str | None = None) -> None:
        """`server_reference` is where the client finds another server (MQTT 5 §4.11)."""
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.server_reference = server_reference


def malformed(text: str) -> PacketError:
    """The bytes do not follow the grammar."""
    return PacketError(Reason.MALFORMED_PACKET, text)


def violation(text: str) -> PacketError:
    """The bytes are well-formed, but say what the protocol does not allow."""
    return PacketError(Reason.PROTOCOL_ERROR, text)
