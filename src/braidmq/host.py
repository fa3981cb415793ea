"""The seam between protocols and the world they run in.

A protocol class is given a `Host` and asks it for everything that is not its own state: the time, chance, sending,
waiting. Two worlds implement it: `net` with sockets and the clock, `sim` with virtual time and faults. So the code that
is proven by seeds is the code that runs.

Handlers are plain: `@handles(Find)` marks a method that takes the sender and a message, changes state at once, and
returns what is to happen: a message is the reply, `Forward` passes the request on to another host (the one that answers
answers the first caller directly), None is no reply. Procedures of several steps are `async def`: they read like the
paper, and look at their state again after each `await`. They wait for answers (`call`, or `ask` where only the answer
matters), for time (`sleep`) and for each other (`event`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, final, overload

import msgspec

Address = str | int
"""Where a host is: `"10.0.0.7:7883"` on a network, a number in the simulator."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """What one host tells another: a plain value, made once and never changed, that knows no behaviour."""


@final
class Forward(msgspec.Struct, frozen=True, gc=False):
    """A handler's wish that a request goes on to another host, as it is or as `message`."""

    to: Address
    message: Message | None = None


Reply = Message | Forward | None
Handler = Callable[[Address, Any], Reply]

T = TypeVar("T")
M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Message)
B = TypeVar("B", bound=Message)
C = TypeVar("C", bound=Message)


class CallError(Exception):
    """A request that got no answer."""


class CallTimeout(CallError):
    """No answer in time. *Indefinite*: what was asked for may have happened, and may yet happen."""


class CallRefused(CallError):
    """The other side is there and will not answer: no such service, or it is shutting down. *Definite*."""


class Chance(Protocol):
    """A source of chance: what of `random.Random` protocols use. Seeded in the simulator."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...
    def getrandbits(self, k: int, /) -> int: ...
    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[T], /) -> T: ...
    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


class Task(Protocol):
    """A procedure under way. `cancel` ends it at its next wait."""

    def cancel(self) -> Any: ...


class Event(Protocol):
    """What procedures can wait for: it happens once, and has happened from then on."""

    @property
    def is_set(self) -> bool: ...

    def set(self) -> None:
        """It happens: all that wait go on, in the order in which they began to wait, once what runs now is through."""
        ...

    def wait(self, timeout_s: float | None = None) -> Awaitable[bool]:
        """Waits until it has happened, for as long as that takes or for so long; whether it has."""
        ...


class Ways(Protocol):
    """How a host's messages leave it: directly, or by another host that passes them on. `braidmq.detours` decides it;
    for everybody else a message goes to where it is sent."""

    is_confined: Callable[[bytes], bool]
    """Asked about a message, as it travels: whether no third host may see it. Then it goes directly, or not at all."""

    on_passed: Callable[[Address, Address], None]
    """Called with the sender, and the host that has passed it on, before what has come by a detour is handled."""

    @property
    def detours(self) -> Mapping[Address, Address]:
        """The hosts that are not sent to directly, and by which host each is reached."""
        ...

    @property
    def linked(self) -> Sequence[Address]:
        """Hosts that this one is in touch with."""
        ...

    def unanswered(self) -> Sequence[Address]:
        """Hosts that were sent something directly since this was last asked, and from which nothing may have come."""
        ...

    def hears(self, address: Address) -> bool:
        """Whether it is known that something came directly from a host within the last moments."""
        ...

    def send_directly(self, to: Address, message: Message) -> None:
        """Tells, as `Host.send`, whatever the detours are."""
        ...

    def go_round(self, to: Address, by: Address, is_sure: bool = True) -> None:
        """From now on what is sent to a host goes by another, and so does what still waits for it. Whether it is sure
        that nothing gets there directly: else what may be under way to it, or from it, is let alone."""
        ...

    def go_directly(self, to: Address) -> None: ...

    def hurry(self) -> None:
        """Tries at once to reach hosts that could not be reached, and would be tried later."""
        ...


class Host(Protocol):
    """All that a protocol may ask of the world."""

    @property
    def ways(self) -> Ways: ...

    @property
    def address(self) -> Address: ...

    @property
    def chance(self) -> Chance: ...

    def now(self) -> float:
        """Seconds; only differences mean anything."""
        ...

    def serve(self, service: object) -> None:
        """Gives all messages that the service has handlers for to it."""
        ...

    def send(self, to: Address, message: Message) -> None:
        """Tells, once and without an answer; it may be lost."""
        ...

    def call(self, to: Address, request: Message, timeout_s: float) -> Awaitable[Any]:
        """Asks and waits for the reply; raises CallTimeout or CallRefused."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...

    def event(self) -> Event:
        """Something that has not happened yet."""
        ...

    def spawn(self, procedure: Coroutine[Any, Any, object]) -> Task:
        """Runs a procedure concurrently."""
        ...


@overload
async def ask(
    host: Host, to: Address, request: Message, replies: type[A], *, timeout_s: float, tries: int = 1, pause_s: float = 0
) -> A | None: ...
@overload
async def ask(
    host: Host,
    to: Address,
    request: Message,
    replies: tuple[type[A], type[B]],
    *,
    timeout_s: float,
    tries: int = 1,
    pause_s: float = 0,
) -> A | B | None: ...
@overload
async def ask(
    host: Host,
    to: Address,
    request: Message,
    replies: tuple[type[A], type[B], type[C]],
    *,
    timeout_s: float,
    tries: int = 1,
    pause_s: float = 0,
) -> A | B | C | None: ...
async def ask(
    host: Host,
    to: Address,
    request: Message,
    replies: Any,
    *,
    timeout_s: float,
    tries: int = 1,
    pause_s: float = 0,
) -> Any:
    """A question of which only the answer matters: a reply of this type, or of one of these, or None.

    Silence is asked again, `tries` times in all and `pause_s` apart, for a message may be lost: so the request must be
    one that may arrive twice. A refusal is definite and ends the tries, and so does a reply of another type. With
    `Message` for a type, any reply will do. Use `Host.call` where it matters why there was no answer.
    """
    for left in range(tries - 1, -1, -1):
        try:
            reply = await host.call(to, request, timeout_s)
        except CallRefused:
            return None
        except CallError:
            if left and pause_s > 0:
                await host.sleep(pause_s)
            continue
        return reply if isinstance(reply, replies) else None
    return None


async def run_all(
    host: Host, procedures: list[Coroutine[Any, Any, None]], is_enough: Callable[[], bool] = lambda: False
) -> None:
    """Runs procedures beside each other; returns when all are through, or it is enough."""
    through = host.event()
    under_way = len(procedures)

    async def run(procedure: Coroutine[Any, Any, None]) -> None:
        nonlocal under_way
        try:
            await procedure
        finally:
            under_way -= 1
            if not under_way or is_enough():
                through.set()

    for procedure in procedures:
        host.spawn(run(procedure))
    if procedures:
        await through.wait()


class handles:  # noqa: N801 - reads as a decorator
    """Marks a method as the handler of a message type."""

    def __init__(self, *types: type[Message]) -> None:
        self.types = types

    def __call__(self, method: Callable[[Any, Address, M], Reply]) -> Callable[[Any, Address, M], Reply]:
        method.__handles__ = self.types  # type: ignore[attr-defined]
        return method


class Service:
    """A protocol's side that hears: its marked handlers are found once, when the class is made."""

    __slots__ = ()

    handlers: ClassVar[dict[type[Message], str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found = dict(cls.handlers)
        for name, member in vars(cls).items():
            for kind in getattr(member, "__handles__", ()):
                found[kind] = name
        cls.handlers = found


def handlers_of(service: object) -> dict[type[Message], Handler]:
    """The handlers of a service, bound to it."""
    marked: dict[type[Message], str] = getattr(type(service), "handlers", {})
    return {kind: getattr(service, name) for kind, name in marked.items()}
