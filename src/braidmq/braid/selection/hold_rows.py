"""What the store has of reservations: a row for each, among the cursors."""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.select.member import Hold, Version
from braidmq.select.request import SelectionRequest

HOLD: Final = "$hold/"
"""Their keys begin with this; the id of the request follows."""

HoldRow = tuple[str, SelectionRequest, Version]
"""The name of the component, what was asked for, and the fencing number."""

decode_hold: Final = msgspec.msgpack.Decoder(HoldRow).decode


def encode_hold(hold: Hold) -> bytes:
    return msgspec.msgpack.encode((hold.component.name, hold.request, hold.fence))
