"""The states of a connection.

CONNECTING ──CONNECT──▶ AUTHENTICATING ──verdict──▶ OPEN
     └──CONNECT with a method──▶ EXCHANGING ──AUTH …──▶ OPEN
any ──DISCONNECT, error, lost socket──▶ CLOSED
"""

from __future__ import annotations

from enum import Enum


class ConnectionState(Enum):
    CONNECTING = "waits for a CONNECT"
    AUTHENTICATING = "the credentials are being checked"
    EXCHANGING = "waits for an AUTH"
    OPEN = "connected"
    CLOSED = "over"
