"""Message processors: a Python function over the last messages of a topic (Tanaka et al. 2021, §3).

    @processor(topic="bus/+/frames", spool=20, output="bus/alerts")
    def passengers(spool: Spool, message: Message) -> Notification | None: ...

Each topic that the filter matches has a spool of its own: its last `spool` messages, in the order of their offsets, the
one that has just come included; the oldest leaves first. `spool_step` is the whole of it. It knows no clock, no socket
and no broker, so the function gives the same results at the edge, on Spark and in a test.

Where several brokers have publishers of a topic, what came to another one is inserted in its place (`spool_order`), and
the function is not called for it here.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, overload

import msgspec

from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, check_topic, matches
from braidmq.processors.spool_order import NO_PLACE, Order, place_of

SPOOL_MAX: Final = 1_000_000
"""The largest size of a spool, in messages."""
TIME_LIMIT_S: Final = 1.0
"""How long a function may take for one message, by default."""
PROPERTIES_MAX: Final = 1_000
"""Properties of one notification."""
TEXT_BYTES_MAX: Final = 65_535
"""The longest text that MQTT can carry."""
SHOWN_MAX: Final = 80
"""Characters of a topic that are shown in an error."""
FAILURE_TEXT_MAX: Final = 1_000
"""Characters of the text of a failure."""
OWN_PREFIXES: Final = ("$SYS/", "$demand/", "$braid/", "$processor/", "$share/", "$spool/", "$spool-mail/")
"""Topics of brokers: no processor reads or publishes there."""
NO_OFFSET: Final = -1
"""Before the first message."""

Properties = tuple[tuple[str, str], ...]


class ProcessorError(ValueError):
    """A processor that cannot be used: what is wrong with it, and what to do."""


class PayloadError(ValueError):
    """A payload that is not what the function expects."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One publication. Times are Unix time in seconds, to the microsecond."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    published_at: float = 0.0
    """When it came to the broker of its publisher."""
    received_at: float = 0.0
    """When it came to this one; of what came to another one, and was copied to the spool here, when it came there."""
    origin: str = ""
    """The broker of its publisher."""
    client: str | None = None
    """The client that published it, where that is known."""
    properties: Properties = ()
    """Its MQTT 5 properties as pairs: user properties in their order, then those that MQTT names."""
    offset: int = 0
    """Its number in the broker's log, or in the broker's count if its topic is not logged. It only grows."""

    def text(self) -> str:
        """The payload as UTF-8 text; a PayloadError if it is none."""
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"the payload is not UTF-8 text: byte {error.start} of {len(self.payload)}") from None

    def json(self) -> Any:
        """What the payload says as JSON; a PayloadError if it is none."""
        try:
            return msgspec.json.decode(self.payload)
        except msgspec.DecodeError as error:
            raise PayloadError(f"the payload is not JSON: {error}") from None


class Notification(msgspec.Struct, frozen=True):
    """What a processor publishes: bytes and text as they are, anything else as JSON; on its `output`, or on `topic`."""

    payload: Any
    topic: str | None = None
    qos: int = 1
    retain: bool = False
    properties: Mapping[str, str] | Sequence[tuple[str, str]] = ()


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A notification that was checked, and can be published."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


Fault = Literal["payload", "function", "result"]


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a message led to nothing: its payload, the function, or the function's result."""

    what: Fault
    text: str


class SpoolState(msgspec.Struct, frozen=True, array_like=True):
    """A spool to be kept or handed over: its messages; the next message has an offset above `last`."""

    last: int
    messages: tuple[Message, ...]

    def encode(self) -> bytes:
        return _encode(self)

    @staticmethod
    def decode(data: bytes) -> SpoolState:
        """Raises msgspec.MsgspecError if it is none."""
        return _decode_state(data)


_encode = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(SpoolState).decode


def order_of(message: Message) -> Order:
    """By what a message has its place in a spool that several brokers have."""
    return message.received_at, message.origin, message.offset


class Spool(Sequence[Message]):
    """The last `size` messages of one topic, the oldest first."""

    __slots__ = ("_messages", "last", "size")

    def __init__(self, size: int, state: SpoolState | None = None) -> None:
        self.size = size
        self._messages: deque[Message] = deque(() if state is None else state.messages, size)
        self.last = NO_OFFSET if state is None else state.last
        """The offset of the last message that was put in."""

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, int):
            return self._messages[index]
        start, stop, step = index.indices(len(self._messages))
        if step > 0:
            return list(islice(self._messages, start, stop, step))
        return list(self._messages)[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"Spool({len(self)} of {self.size} messages, up to offset {self.last})"

    @property
    def is_full(self) -> bool:
        return len(self._messages) == self.size

    @property
    def state(self) -> SpoolState:
        return SpoolState(self.last, tuple(self._messages))

    def put(self, message: Message) -> bool:
        """Adds a message, and drops the oldest if there are too many; False if it was added before."""
        if message.offset <= self.last:
            return False
        self.last = message.offset
        self._messages.append(message)
        return True

    def insert(self, message: Message) -> bool:
        """Puts a message that came to another broker in its place; False if it is there already, or too old."""
        messages = self._messages
        place = place_of(messages, order_of(message), order_of, self.size)
        if place == NO_PLACE:
            return False
        if len(messages) == self.size:
            messages.popleft()
            place -= 1
        messages.insert(place, message)
        return True


Function = Callable[[Spool, Message], Notification | None]


class Processor:
    """A function with its topic, spool and output; called, it is the function alone."""

    def __init__(
        self,
        function: Function,
        *,
        name: str,
        topic: str,
        spool: int,
        output: str | None = None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self.function = function
        self.name = name
        self.topic = topic
        self.spool = spool
        self.output = output
        self.time_limit_s = time_limit_s
        self._check()

    def __call__(self, spool: Spool, message: Message) -> Notification | None:
        return self.function(spool, message)

    def __repr__(self) -> str:
        return f"<processor {self.name} of {self.topic}>"

    def changed(
        self,
        *,
        name: str | None = None,
        topic: str | None = None,
        spool: int | None = None,
        output: str | None = None,
        time_limit_s: float | None = None,
    ) -> Processor:
        """The same function, with these settings in place of its own."""
        return Processor(
            self.function,
            name=name or self.name,
            topic=topic or self.topic,
            spool=spool or self.spool,
            output=output or self.output,
            time_limit_s=time_limit_s or self.time_limit_s,
        )

    def _check(self) -> None:
        """Refuses settings that cannot work for any message."""
        if not self.name or any(character in "/+#" or not character.isprintable() for character in self.name):
            raise ProcessorError(
                f"the name {self.name!r} is no level of a topic: leave out / + # and what is invisible"
            )
        if type(self.spool) is not int or not 1 <= self.spool <= SPOOL_MAX:
            raise ProcessorError(f"{self.name}: spool={self.spool!r}, expected a number from 1 to {SPOOL_MAX:,}")
        if not isinstance(self.time_limit_s, int | float) or not self.time_limit_s > 0:
            raise ProcessorError(f"{self.name}: time_limit_s={self.time_limit_s!r}, expected a number above 0")
        try:
            check_filter(self.topic)
        except PacketError as error:
            raise ProcessorError(f"{self.name}: topic={self.topic!r}: {error.text}") from None
        if self.topic.startswith(OWN_PREFIXES):
            raise ProcessorError(f"{self.name}: topic={self.topic!r}: what brokers say there is not processed")
        if self.output is not None and (problem := self.output_problem(self.output)):
            raise ProcessorError(f"{self.name}: output={self.output!r}: {problem}")

    def output_problem(self, topic: str) -> str:
        """Why this processor may not publish on a topic; empty if it may."""
        try:
            check_topic(topic)
        except PacketError as error:
            return error.text
        if not _is_text(topic):
            return "no text that MQTT can carry: at most 65,535 bytes of UTF-8, without U+0000"
        if topic.startswith(OWN_PREFIXES):
            return "only brokers publish there"
        if matches(self.topic, topic):
            return f"it matches the processor's own input {self.topic!r}, and would go round for ever"
        return ""


def processor(
    *,
    topic: str,
    spool: int,
    output: str | None = None,
    name: str | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Callable[[Function], Processor]:
    """Makes a processor of a function (see above). `time_limit_s` is how long it may take for a message."""

    def make(function: Function) -> Processor:
        own_name = name if name is not None else getattr(function, "__name__", "")
        return Processor(function, name=own_name, topic=topic, spool=spool, output=output, time_limit_s=time_limit_s)

    return make


def spool_step(processor: Processor, spool: Spool, message: Message) -> Output | Failure | None:
    """One message: into the spool, and through the function. Nothing but the spool is changed.

    A message whose offset is not above the last one's was processed before, and leads to nothing. A message on which
    the function fails stays in the spool.
    """
    if not spool.put(message):
        return None
    try:
        given = processor.function(spool, message)
        return None if given is None else _output(processor, given)
    except PayloadError as error:
        return _failure("payload", str(error))
    except _ResultError as error:
        return _failure("result", str(error))
    except (Exception, SystemExit) as error:
        return _failure("function", _words(error))


def _failure(what: Fault, text: str) -> Failure:
    return Failure(what, text[:FAILURE_TEXT_MAX].encode(errors="replace").decode())


class _ResultError(ValueError):
    """The function's result cannot be published."""


def _output(processor: Processor, given: object) -> Output:
    if not isinstance(given, Notification):
        raise _ResultError(f"it gave {type(given).__name__}, expected a Notification or None")
    topic = processor.output if given.topic is None else given.topic
    if topic is None:
        raise _ResultError("no topic: give the notification one, or the processor an output")
    if topic is not processor.output:
        if not isinstance(topic, str):
            raise _ResultError(f"topic={topic!r}, expected text")
        if problem := processor.output_problem(topic):
            raise _ResultError(f"topic={topic[:SHOWN_MAX]!r}: {problem}")
    if given.qos not in (0, 1, 2):
        raise _ResultError(f"qos={given.qos!r}, expected 0, 1 or 2")
    return Output(topic, _payload(given.payload), int(given.qos), bool(given.retain), _properties(given.properties))


def _payload(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _ResultError(f"the payload, {type(value).__name__}, cannot be written as JSON: {error}") from None


def _properties(given: Mapping[str, str] | Sequence[tuple[str, str]]) -> Properties:
    try:
        pairs = tuple((name, value) for name, value in (given.items() if isinstance(given, Mapping) else given))
    except (TypeError, ValueError):
        pairs = ((None, None),)  # type: ignore[assignment]
    if len(pairs) > PROPERTIES_MAX or not all(_is_text(name) and _is_text(value) for name, value in pairs):
        raise _ResultError(f"properties, expected at most {PROPERTIES_MAX} pairs of texts of up to 65,535 bytes")
    return pairs


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and "\0" not in value and len(value.encode()) <= TEXT_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _words(error: BaseException) -> str:
    """An exception, and the last line of the function's own file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename.rpartition('/')[2]})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{where}"
