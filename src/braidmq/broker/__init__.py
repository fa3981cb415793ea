"""The core of a broker, sans-IO: sessions, subscriptions, retained messages and wills, and the way of every packet.

A `Broker` is given its time, its store and, once it has joined others, its `Federation`. A client comes in by `accept`
and is fed bytes. What the core needs of the world it names as protocols: `Transport`, `Store`, `Recorder`,
`Federation` and `TopicFeed`.
"""

from braidmq.broker.broker import Broker
from braidmq.broker.connection import Connection
from braidmq.broker.federation import Alone, Federation
from braidmq.broker.feed import TopicFeed
from braidmq.broker.limits import Limits
from braidmq.broker.message import Message, Reached
from braidmq.broker.receiving import accept
from braidmq.broker.recorder import NoRecorder, Recorder
from braidmq.broker.store import MemoryStore, Store, StoreError
from braidmq.broker.transport import Transport

__all__ = [
    "Alone",
    "Broker",
    "Connection",
    "Federation",
    "Limits",
    "MemoryStore",
    "Message",
    "NoRecorder",
    "Reached",
    "Recorder",
    "Store",
    "StoreError",
    "TopicFeed",
    "Transport",
    "accept",
]
