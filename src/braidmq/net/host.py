"""The Host of a network: what a protocol sends becomes frames, and what comes in goes to its handlers.

Handlers run where their message is read, one after the other. One that raises is logged and counted; if a request led
to it, that is refused, and the link lives on. A request that is passed on keeps its first caller, who is answered
directly. What a host sends to itself passes no socket, but comes in the next tick, as from another.

Two things differ from virtual time, and no protocol may build on either: a spawned procedure begins in the next tick
and not at once, and there is time between any two messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from braidmq.detours.messages import PingDirectly
from braidmq.host import Address, CallRefused, CallTimeout, Chance, Forward, Handler, Message, handlers_of
from braidmq.net.bounds import Bounds
from braidmq.net.counters import Counters
from braidmq.net.event import NetEvent
from braidmq.net.faults import Fault
from braidmq.net.frames import REASON_LENGTH_MAX, Codec, Envelope, Farewell, Passed, Refused, Reply, Request, Tell
from braidmq.net.hello import NAME_LENGTH_MAX
from braidmq.net.links import Links, Shortcut
from braidmq.net.peer import PeerState
from braidmq.net.security import Security
from braidmq.net.ways import NetWays

_log = logging.getLogger("braidmq.net")

OnMessage = Callable[[Address, Address, Message, int], None]


class NetHost:
    """A host on asyncio, in the loop that runs when it is started."""

    def __init__(
        self,
        listen: str,
        messages: Sequence[type[Message]],
        *,
        name: str = "",
        advertise: str | None = None,
        security: Security | None = None,
        bounds: Bounds | None = None,
        chance: Chance | None = None,
        identity: str = "",
        terms: Mapping[str, str] | None = None,
    ) -> None:
        """`listen` is where, as host:port; `advertise` is what peers are told if that differs; `messages` are all
        classes that any service of this host may send or hear; `security` is the same in all hosts of a braid, and
        may be left out on loopback; `name` is for people, and no two hosts with an `identity` may have the same;
        `identity` is who this host is, from one start to the next; `terms` are what must be the same in all hosts."""
        if len(name) > NAME_LENGTH_MAX:
            raise ValueError(f"a host's name has at most {NAME_LENGTH_MAX} characters")
        self.bounds = bounds or Bounds()
        self.chance: Chance = chance or random.Random()  # noqa: S311 - for protocols, not for secrets
        self.on_message: OnMessage | None = None
        """Called with sender, receiver, message and hops when one arrives; a reply comes with 0 hops."""
        self.on_read: Callable[[], Callable[[], None]] | None = None
        """Called before the messages of a read are handled; what it returns is called when all of them are."""
        self.weigh: Callable[[Message], int] | None = None
        """Says of each message how many bytes of publications it carries, 0 if it is upkeep: for the counters."""
        self.posted = 0
        """How often anything was sent, or would have been."""
        self._record: list[tuple[Address, Envelope]] | None = None
        self._listen = listen
        self._advertise = advertise
        self._codec = Codec(messages, self.bounds.frame_messages_max)
        self._links = Links(
            name,
            self._codec,
            self.bounds,
            security or Security.none(),
            self.chance,
            self._receive,
            identity,
            terms,
        )
        self._peers = self._links.peers
        self.ways = NetWays(self._links)
        self._handlers: dict[type[Message], Handler] = {Farewell: self._on_farewell, Passed: self._on_passed}
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._next_call = secrets.randbits(62)  # an answer to an earlier incarnation finds no call
        self._answers_by = ""
        """The host by which a request has come that is being handled: it passes the reply on, too."""
        self._own: deque[Envelope] = deque()
        self._own_counters = Counters()
        self._procedures: dict[asyncio.Task[object], None] = {}
        self._is_running = False
        self._was_started = False

    # Start and stop

    async def start(self) -> None:
        """Listens. OSError if it cannot, ValueError if an address is none."""
        if self._was_started:
            raise RuntimeError("a host is started once; make a new one to start again")
        self._was_started = True
        await self._links.start(self._listen, self._advertise)
        self._is_running = True

    async def stop(self) -> None:
        """Ends procedures, calls and links, once what was sent has gone out. Does nothing the second time."""
        if not self._is_running:
            return
        self._is_running = False
        own = asyncio.current_task()
        procedures = [task for task in self._procedures if task is not own]
        for task in procedures:
            task.cancel()
        await asyncio.gather(*procedures, return_exceptions=True)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(CallTimeout("this host stopped before there was an answer"))
        await self._links.stop()

    def say_farewell(self) -> None:
        """Tells all that are linked, or gone round to, that this host is about to stop."""
        for peer in (*self.linked, *self.ways.detours):
            self.send(peer, Farewell())

    def _on_farewell(self, sender: Address, _told: Farewell) -> None:
        peer = self._peers.get(sender)
        if peer is not None:
            self._links.part_from(peer)

    def _on_passed(self, sender: Address, passed: Passed) -> None:
        """Something for another host, or for this one from a host that does not reach it."""
        assert isinstance(sender, str)
        if passed.to != self._links.address:
            self.ways.pass_on(sender, passed)
            return
        self.ways.on_passed(passed.origin, sender)
        envelopes = self._codec.decode(passed.frame)
        self._answers_by = sender
        try:
            self._handle_all(passed.origin, [one for one in envelopes if not _is_direct_ping(one)])
        finally:
            self._answers_by = ""

    # Who it is to others

    @property
    def is_member(self) -> bool:
        """Whether this host is in its braid. One that is not yet must give way if its name is another's."""
        return self._links.is_member

    @is_member.setter
    def is_member(self, is_member: bool) -> None:
        self._links.is_member = is_member

    def name_of(self, address: Address) -> str:
        """What another host is called, for people; its address if it has not said it."""
        peer = self._peers.get(address)
        return str(address) if peer is None or peer.greeting is None else peer.greeting.name or str(address)

    @property
    def refusals(self) -> dict[str, str]:
        """Why this host is not let in, by the addresses of those that said so."""
        return self._peers.refusals

    def watch(self, on_linked: Callable[[str, str], None], on_parted: Callable[[str], None]) -> None:
        """`on_linked` is told identity and address of each peer when there is a link to it, `on_parted` the address of
        one that has said good-bye, or is known to be elsewhere."""
        self._links.on_linked, self._links.on_parted = on_linked, on_parted

    # Host

    @property
    def address(self) -> str:
        """Where peers reach this host."""
        if not self._was_started:
            raise RuntimeError("a host has no address before it is started")
        return self._links.address

    def now(self) -> float:
        return time.monotonic()

    def serve(self, service: object) -> None:
        handlers = handlers_of(service)
        unknown = [kind.__name__ for kind in handlers if kind not in self._codec.known]
        if unknown:
            raise ValueError(f"{type(service).__name__} handles messages that this host was not made with: {unknown}")
        self._handlers.update(handlers)

    def send(self, to: Address, message: Message) -> None:
        """Tells. Above a bound, or to what is no address, the message is dropped and counted."""
        self._codec.check(message)
        self._post(to, Tell(1, message))

    async def call(self, to: Address, request: Message, timeout_s: float) -> Any:
        """Asks, when it is awaited. CallRefused also if the request was not sent, because of a bound or because `to`
        is no address; a peer that cannot be reached is a CallTimeout, as it is one that does not answer."""
        self._codec.check(request)
        if len(self._calls) >= self.bounds.calls_max:
            raise CallRefused(f"{len(self._calls)} calls wait for an answer already (calls_max)")
        number = self._next_call
        refusal = self._post(to, Request(number, "", 1, request))
        if refusal is not None:
            raise CallRefused(refusal)
        self._next_call += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        self._calls[number] = future
        timer = loop.call_later(timeout_s, _expire, future, to, request)
        try:
            return await future
        finally:
            timer.cancel()
            del self._calls[number]

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def event(self) -> NetEvent:
        return NetEvent()

    def spawn(self, procedure: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Runs a procedure until it ends, is cancelled, or the host stops. One that raises is logged and counted."""
        task = asyncio.get_running_loop().create_task(procedure)
        self._procedures[task] = None
        task.add_done_callback(self._on_procedure_done)
        return task

    # What it counts

    def counters(self, peer: str | None = None) -> Counters:
        """What passed to and from a peer that is known now; of all peers together, forgotten ones too, without one."""
        if peer is not None:
            return self._peers.counters_of(peer) or Counters()
        totals = self._peers.totals()
        totals.add(self._own_counters)
        return totals

    @property
    def faults(self) -> Counter[Fault]:
        return self._links.faults

    @property
    def linked(self) -> list[str]:
        """The peers to which there is a link now."""
        return self._peers.linked

    # Out

    def cork(self) -> bool:
        """Holds back what is sent until `uncork`, instead of until the end of the tick; False if it is held already."""
        return self._links.cork()

    def uncork(self) -> None:
        self._links.uncork()

    def peer(self, address: Address) -> PeerState | None:
        """What is kept for another host, if anything is."""
        return self._peers.get(address)

    def frame_of(self, envelope: Envelope) -> bytes:
        """The frame, with its length, that an envelope alone would travel in."""
        return self._codec.frame(envelope)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[Address, Envelope]]]:
        """Notes what is sent meanwhile, and to whom."""
        posts: list[tuple[Address, Envelope]] = []
        self._record = posts
        try:
            yield posts
        finally:
            self._record = None

    def take_shortcut(self, shortcut: Shortcut) -> None:
        """Offers it every frame that may hold one small message, before that is decoded."""
        self._links.shortcut = shortcut

    def _post(self, to: Address, envelope: Envelope) -> str | None:
        """Puts an envelope on its way, or says why not."""
        self.posted += 1
        if self._record is not None:
            self._record.append((to, envelope))
        if not self._is_running:
            self._own_counters.dropped += 1
            return "this host is not running"
        if to != self._links.address:
            return self._links.queue(to, envelope, self.weight_of(envelope))
        if len(self._own) >= self.bounds.local_max:
            self._own_counters.dropped += 1
            return f"{len(self._own)} messages of this host to itself wait already (local_max)"
        if not self._own:
            asyncio.get_running_loop().call_soon(self._hear_own)
        self._own.append(envelope)
        return None

    def _answer(self, origin: str, call: int, reply: Message) -> None:
        self._codec.check(reply)
        answer, by = Reply(call, reply), self._answers_by
        if not by or not self.ways.answer_round(origin, by, self._codec.frame(answer)):
            self._post(origin, answer)

    def _refuse(self, origin: str, call: int, reason: str) -> None:
        counters = self._peers.counters_of(origin) or self._own_counters
        counters.refused += 1
        self._post(origin, Refused(call, reason[:REASON_LENGTH_MAX]))

    # In

    def _hear_own(self) -> None:
        envelopes = list(self._own)
        self._own.clear()
        self._receive(self._links.address, envelopes)

    def _receive(self, sender: str, envelopes: list[Envelope]) -> None:
        if self.on_read is None:
            self._handle_all(sender, envelopes)
            return
        done = self.on_read()
        try:
            self._handle_all(sender, envelopes)
        finally:
            done()

    def weight_of(self, envelope: Envelope) -> int:
        """The bytes of publications that an envelope carries."""
        return 0 if self.weigh is None or isinstance(envelope, Refused) else self.weigh(envelope.body)

    def _handle_all(self, sender: str, envelopes: list[Envelope]) -> None:
        counters = None if self.weigh is None else self._peers.counters_of(sender)
        for envelope in envelopes:
            if not self._is_running:
                return
            if counters is not None and (weight := self.weight_of(envelope)):
                counters.publications_in += 1
                counters.publication_bytes_in += weight
            if isinstance(envelope, Tell):
                self._deliver(sender, sender, None, envelope.body, envelope.hops)
            elif isinstance(envelope, Request):
                self._deliver(sender, envelope.origin or sender, envelope.call, envelope.body, envelope.hops)
            else:
                self._finish(sender, envelope)

    def _deliver(self, sender: str, origin: str, call: int | None, message: Message, hops: int) -> None:
        """Gives a message to its handler and does what that wishes."""
        if self.on_message is not None:
            self.on_message(sender, self._links.address, message, hops)
        try:
            refusal = self._handle(origin, call, message, hops)
        except Exception:
            _log.exception("%s: the handler of %s failed", self._links.describe(), type(message).__name__)
            self.faults[Fault.HANDLER] += 1
            refusal = f"{self.address} failed to handle {type(message).__name__}"
        if refusal is not None and call is not None:
            self._refuse(origin, call, refusal)

    def _handle(self, origin: str, call: int | None, message: Message, hops: int) -> str | None:
        """Returns why the message is refused, or None."""
        for _ in range(self.bounds.hops_max):
            handler = self._handlers.get(type(message))
            if handler is None:
                return f"{self.address} has no handler for {type(message).__name__}"
            reply = handler(origin, message)
            if not isinstance(reply, Forward):
                if reply is not None and call is not None:
                    self._answer(origin, call, reply)
                return None
            message = reply.message or message
            if reply.to != self.address:
                return self._pass_on(reply.to, origin, call, message, hops + 1)
        return f"{self.address} forwards {type(message).__name__} to itself without end (hops_max)"

    def _pass_on(self, to: Address, origin: str, call: int | None, message: Message, hops: int) -> str | None:
        self._codec.check(message)
        if hops > self.bounds.hops_max:
            self._own_counters.dropped += 1
            return f"{type(message).__name__} was passed on {self.bounds.hops_max} times (hops_max)"
        return self._post(to, Tell(hops, message) if call is None else Request(call, origin, hops, message))

    def _finish(self, sender: str, envelope: Reply[Message] | Refused) -> None:
        if self.on_message is not None:
            self.on_message(sender, self._links.address, envelope.body if isinstance(envelope, Reply) else envelope, 0)
        future = self._calls.get(envelope.call)
        if future is None or future.done():
            return  # too late, or a second answer
        if isinstance(envelope, Refused):
            future.set_exception(CallRefused(envelope.reason))
        else:
            future.set_result(envelope.body)

    def _on_procedure_done(self, task: asyncio.Task[object]) -> None:
        self._procedures.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.faults[Fault.PROCEDURE] += 1
            _log.error("%s: a procedure failed", self._links.describe(), exc_info=error)


def _expire(future: asyncio.Future[Message], to: Address, request: Message) -> None:
    if not future.done():
        future.set_exception(CallTimeout(f"{to} did not answer {type(request).__name__}"))


def _is_direct_ping(envelope: Envelope) -> bool:
    """Something that was to come directly, and waited for a link until all that waited was sent round."""
    return isinstance(envelope, Tell) and isinstance(envelope.body, PingDirectly)
