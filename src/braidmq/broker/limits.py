"""Every bound of the broker, with its name. Nothing in it grows without one of these.

The names are those of the configuration file's [limits] table; units stand last.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
PacketId = Annotated[int, msgspec.Meta(ge=1, le=65535)]

FOREVER = 0xFFFFFFFF
"""The Session Expiry Interval that means "never" (MQTT 5 §3.1.2.11.2)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # A connection before it is one.
    connections_max: Count = 100_000
    connect_rate_max: Count = 5_000
    """Connects a second, over all listeners; those above wait in the kernel's accept queue."""
    connect_timeout_s: Seconds = 10.0
    """From the accepted socket to a complete and authenticated CONNECT: the slow-loris bound."""
    connect_packet_bytes_max: Count = 65_536
    """The largest CONNECT; its client is not known yet, so it is small."""

    # What a client may send.
    packet_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=268_435_460)] = 8 * 1024 * 1024
    user_properties_max: Count = 100
    """User properties in one packet, and in a will; one with more ends the connection (MQTT 5 reason 0x97)."""
    packet_filters_max: Count = 10_000
    """Topic filters in one packet; one with more ends the connection (MQTT 5 reason 0x97)."""
    topic_levels_max: Count = 128
    subscriptions_max: Count = 10_000
    """Subscriptions a session."""
    subscription_bytes_max: Count = 16 * 1024 * 1024
    """What the filters of a session may take up: their text, and 200 bytes a level."""
    subscription_ids: bool = True
    receive_max: PacketId = 1_024
    """QoS 1 and 2 publications that a client may have under way towards the broker (MQTT 5 Receive Maximum)."""
    topic_alias_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 64
    """Topic aliases that a client may set on its connection."""

    # What a client is sent.
    inflight_max: PacketId = 1_024
    """QoS 1 and 2 publications under way towards a client, whatever larger number it would take."""
    topic_alias_out_max: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 16
    """Topic aliases that the broker sets towards a client that allows them."""
    outbound_bytes_max: Annotated[int, msgspec.Meta(ge=65_536)] = 1024 * 1024
    """Bytes that wait for a slow reader before QoS 0 is dropped and QoS 1 and 2 are held in its queue."""
    queue_messages_max: Count = 10_000
    """QoS 1 and 2 messages that wait for a session, offline or slow."""
    queue_bytes_max: Count = 64 * 1024 * 1024
    queue_full: Literal["drop_oldest", "drop_newest"] = "drop_oldest"
    """For an offline session's full queue. A slow reader that is connected is disconnected first."""
    queue_qos0: bool = False
    """Also keep QoS 0 messages for offline sessions."""

    # Sessions and what is kept.
    session_expiry_max_s: Annotated[int, msgspec.Meta(ge=0, le=FOREVER)] = FOREVER
    sessions_max: Count = 1_000_000
    keep_alive_max_s: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """The longest keep-alive granted (MQTT 5 Server Keep Alive); 0 leaves it to the client."""
    retained_messages_max: CountOrNone = 1_000_000
    retained_bytes_max: CountOrNone = 1024 * 1024 * 1024
    message_expiry_max_s: Annotated[int, msgspec.Meta(ge=0, le=FOREVER)] = 0
    """Messages that say no expiry, or a later one, get this one; 0 leaves them alone."""
    route_cache_max: Count = 65_536
    """Topics whose receivers are remembered."""
    qos_max: Literal[0, 1, 2] = 2
    retain: bool = True
    wildcards: bool = True
    shared_subscriptions: bool = True
    response_topic_prefix: str = "response/"
    """What Response Information is made of: this and the client id; empty gives none (MQTT 5 §4.10)."""
