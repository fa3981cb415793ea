"""All links of a host: one a pair of hosts, made when there is something to send, made again when it was lost.

Two hosts may dial each other at the same moment. Then the connection that the host with the smaller address dialled
stays: it turns the other's hello away once it has said its own, and the host with the larger address gives up its dial
when it hears that hello. A hello from a peer that is linked already comes from one that lost its end: the new link
takes the place of the old.

If that hello has another nonce, then the peer was restarted and this host has not noticed, or two processes believe
that they have the same address (`claims`). A host that cannot be in the same braid as this one is refused and told
why; it tries on, for what is in its way may go.

A peer that is lost is told of once, and once when it is back, however often it was dialled meanwhile. One that has said
good-bye is not lost: what waits for it is dropped, and when it is wanted all the same it is dialled once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, Protocol

from braidmq.host import Chance
from braidmq.net.acceptor import LinkAcceptor
from braidmq.net.addresses import format_address
from braidmq.net.bounds import Bounds
from braidmq.net.claims import Claims
from braidmq.net.dialler import Dialler
from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import LENGTH_BYTES, Codec, Envelope, Passed, Tell
from braidmq.net.hello import NONCE_BYTES, Hello
from braidmq.net.link import Link
from braidmq.net.link_notices import LinkNotices
from braidmq.net.peer import PeerState
from braidmq.net.peers import Peers
from braidmq.net.security import KIND_NAMES, Security

_log = logging.getLogger("braidmq.net")

Receive = Callable[[str, list[Envelope]], None]
"""Given the sender and what it sent."""

REFUSALS = (Fault.TERMS, Fault.NAME, Fault.REFUSED, Fault.VERSION, Fault.SECURITY)
"""Faults by which a host that is dialled says that this one is not let in."""

HURRY_S = 0.5
"""Peers that could not be reached are tried at once, when that is asked for, at most so often."""

SILENT_S = 2.0
"""A link is silent if nothing has come since a look so long ago, though something was sent."""

SHORT_BYTES_MAX = 4096
"""A larger frame is not offered to a shortcut."""


class Shortcut(Protocol):
    """What can handle frames with one message without having them decoded."""

    def take(self, sender: str, frame: bytes) -> int:
        """Handles a frame; the bytes of publications in it, or 0: then it takes the long way."""

    def learn(self, sender: str, frame: bytes, envelope: Envelope) -> None:
        """A frame with this one message has just taken the long way."""


class Links:
    def __init__(
        self,
        name: str,
        codec: Codec,
        bounds: Bounds,
        security: Security,
        chance: Chance,
        receive: Receive,
        identity: str = "",
        terms: Mapping[str, str] | None = None,
    ) -> None:
        self.bounds = bounds
        self.security = security
        self.address = ""
        self.peers = Peers(codec, bounds, self.describe)
        self.faults: Counter[Fault] = Counter()
        self.is_confined: Callable[[bytes], bool] = _no
        """Whether no other peer may pass on a frame."""
        self.is_member = True
        """Whether this host is in its braid: see `Hello`."""
        self.on_linked: Callable[[str, str], None] | None = None
        """Called with the identity, if it has one, and the address of a peer to which there is a link now."""
        self.on_parted: Callable[[str], None] | None = None
        """Called with the address of a peer that has said good-bye, or is known to be elsewhere."""
        self._name = name
        self._identity = identity
        self._terms = dict(terms or {})
        self._notices = LinkNotices(bounds, self.describe)
        self._codec = codec
        self._chance = chance
        self._receive = receive
        self.shortcut: Shortcut | None = None
        self._is_corked = False
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._by_name = self.peers.by_name
        self._links: dict[Link, None] = {}
        self._unflushed: list[PeerState] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._acceptor = LinkAcceptor(self)
        self._hurried_at = 0.0
        self._dialler = Dialler(self, self._notices, chance)
        self._claims = Claims(self, self.peers, self._dialler)
        self.is_stopping = False
        self._complaint = ""
        self._all_lost = asyncio.Event()

    # Start and stop

    async def start(self, listen: str, advertise: str | None) -> None:
        host, port = await self._acceptor.open(listen, advertise)
        self.address = advertise or format_address(host, port)
        self.keep(self._sweep())
        _log.info("%s listens for its peers with %s", self.describe(), KIND_NAMES[self.security.kind])

    async def stop(self) -> None:
        self.is_stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._acceptor.close()
        self._flush()
        for link in list(self._links):
            if link.peer is not None:
                link.close("this host stops", self._now() + self.bounds.close_s_max)
            else:
                link.abort("this host stops")
        if self._links:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_lost.wait(), self.bounds.close_s_max)
        for link in list(self._links):
            link.abort("this host stops")
        for peer in self.peers.all():
            peer.drop_waiting()
        _log.info("%s has stopped", self.describe())

    def describe(self) -> str:
        return f"{self._name} at {self.address}" if self._name else self.address

    def hello(self, to: str, is_question: bool = False, refusal: str = "") -> Hello:
        return Hello(
            self.address,
            self._nonce,
            to,
            self._name,
            is_question,
            self._identity,
            self._terms,
            self.is_member,
            refusal,
        )

    def keep(self, procedure: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a procedure of the links; it ends with them at the latest."""
        task = asyncio.get_running_loop().create_task(procedure)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # Out

    def queue(self, to: object, envelope: Envelope, weight: int = 0, is_direct: bool = False) -> str | None:
        """Takes an envelope to be sent at the end of the tick, or says why not. `weight`: bytes of publications.
        `is_direct`: also if what is for this peer goes by another."""
        peer = self._by_name.get(to) if isinstance(to, str) else None
        if peer is None:
            try:
                peer = self.peers.add(to)
            except (ValueError, LinkError) as error:
                self.peers.past.dropped += 1
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    _log.warning("%s sends nothing to %.60r: %s", self.describe(), to, error)
                return str(error)
        if peer.by and not is_direct:
            frame = self._codec.frame(envelope)
            if not self.is_confined(frame):
                return self.send_round(peer, frame[LENGTH_BYTES:], weight)
        was_empty = not peer.batched
        refusal = peer.queue(envelope, weight)
        if refusal is None and was_empty:
            if not self._unflushed and not self._is_corked:
                asyncio.get_running_loop().call_soon(self._flush)
            self._unflushed.append(peer)
        return refusal

    def send_round(self, peer: PeerState, frame: bytes, weight: int = 0) -> str | None:
        """Lets another peer pass on a frame, or says why not."""
        return self.queue(peer.by, Tell(1, Passed(peer.address, self.address, frame)), weight, is_direct=True)

    def cork(self) -> bool:
        """Lets the caller say when what is sent from now on leaves, with `uncork`; False if that was said already."""
        if self._is_corked or self._unflushed:
            return False
        self._is_corked = True
        return True

    def uncork(self) -> None:
        self._is_corked = False
        if self._unflushed:
            self._flush()

    def _flush(self) -> None:
        now = self._now()
        peers, self._unflushed = self._unflushed, []
        for peer in peers:
            try:
                peer.flush(now)
            except Exception:  # one that cannot be written to must not keep other ones from being
                _log.exception("%s: nothing could be sent to %s", self.describe(), peer.address)
                self.faults[Fault.HANDLER] += 1
            if peer.link is None:
                self._dialler.dial_if_wanted(peer)

    def hurry(self) -> None:
        """A network that was cut may be back: peers without a link are dialled now, if anything waits for them. So are
        those whose link is silent: TCP tries that again later and later, and a new one takes its place."""
        now = self._now()
        if now - self._hurried_at > HURRY_S:
            self._hurried_at = now
            for peer in self.peers.all():
                if peer.link is not None and now - peer.silent_since > SILENT_S:
                    self._dialler.dial_beside(peer)
                elif peer.link is None and not peer.has_left:
                    peer.dial_at = min(peer.dial_at, now)
                    self._dialler.wake(peer)

    # What links report

    def on_made(self, link: Link, where: tuple[str, int] | None) -> None:
        """A connection stands, with TLS if that is wanted; the hello is to come."""
        self._links[link] = None
        if link.dialled is not None:
            link.deadline = self._now() + self.bounds.connect_timeout_s
            if where is not None and not self.security.allows(where[0]):
                text = f"{where[0]} is another machine: links need a braid key or TLS (or `insecure` said)"
                raise LinkError(Fault.SECURITY, text)

    def on_hello(self, link: Link, hello: Hello) -> None:
        """Decides whether a link is opened. With a braid key, its proof was right."""
        if hello.nonce == self._nonce:
            raise LinkError(Fault.SELF, "it is this host itself, under another name")
        if hello.address == self.address:
            raise LinkError(Fault.ADDRESS, "it says that it has the address of this host")
        self.security.check_name(hello.address, link.certificate)
        link.address = hello.address
        if link.is_question or hello.is_question:
            self._answer_question(link, hello)
            return
        self._claims.check(self.hello(hello.address), hello)
        rival = self._claims.rival(hello)
        if rival is not None:
            self._claims.settle_name(link, hello, rival)
            return
        if self._claims.is_contested(link, hello):
            self._claims.ask_who_is_there(self._by_name[hello.address], link.where)
            link.close("another process is linked under its address", self._now() + self.bounds.close_s_max)
            return
        if link.dialled is not None:
            peer = self.peers.named(link.dialled, hello.address, self._now())
        else:
            peer = self._by_name.get(hello.address) or self.peers.add(hello.address)
            if self._dials_already(peer, hello):
                _log.debug("%s: %s dialled at the same time; its link is not needed", self.describe(), hello.address)
                link.close("the other side dialled, too", self._now() + self.bounds.close_s_max)
                return
            link.greet(hello.address)
        if peer is not link.dialled:
            peer.give_up_dial()
        self._open(peer, link, hello)

    def _answer_question(self, link: Link, hello: Hello) -> None:
        """Says who is there, or hears it; no link comes of it."""
        if link.dialled is None:
            link.greet(hello.address)
        else:
            link.answer = hello
        link.close("it was only asked who is there", self._now() + self.bounds.close_s_max)

    def on_frame(self, link: Link, frame: bytes) -> None:
        assert link.peer is not None
        counters = link.peer.counters
        shortcut = self.shortcut if len(frame) <= SHORT_BYTES_MAX else None
        if shortcut is not None and (weight := shortcut.take(link.address, frame)):
            counters.frames_in += 1
            counters.messages_in += 1
            counters.publications_in += 1
            counters.publication_bytes_in += weight
            return
        envelopes = self._codec.decode(frame)
        counters.frames_in += 1
        counters.messages_in += len(envelopes)
        self._receive(link.address, envelopes)
        if shortcut is not None and len(envelopes) == 1:
            shortcut.learn(link.address, frame, envelopes[0])

    def on_fault(self, link: Link, error: LinkError, cut: bool = True) -> None:
        self.faults[error.fault] += 1
        if link.dialled is not None and not link.is_question and error.fault in REFUSALS:
            link.is_refused = True
            link.dialled.refusal = str(error)
        self._notices.fault(link, str(error), self._now())
        if cut:
            link.abort(str(error))
        else:
            link.close(str(error), self._now() + self.bounds.close_s_max)

    def on_end(self, link: Link) -> None:
        """Nothing passes on a link any more; its last bytes may still be on their way."""
        self._acceptor.strangers.pop(link, None)
        peer = link.peer
        if peer is not None and peer.link is link:
            now = self._now()
            peer.on_lost(now, now - link.opened_at, self._chance)
            if peer.has_left:
                peer.rest(now)
            if not self.is_stopping:
                self._notices.lost(peer, link, now)
            self._dialler.dial_if_wanted(peer)

    def on_moved(self, rival: PeerState, hello: Hello) -> None:
        """A peer is at another address now, or another host has its name."""
        _log.info("%s: %r is at %s now, no longer at %s", self.describe(), hello.name, hello.address, rival.address)
        rival.greeting = None
        self.part_from(rival)
        if rival.link is not None:
            rival.link.abort(f"{hello.name!r} is at {hello.address} now")

    def part_from(self, peer: PeerState) -> None:
        """A peer ends, or is elsewhere: it need not be looked for."""
        peer.has_left = True
        if self.on_parted is not None:
            for name in peer.names:
                self.on_parted(name)

    def on_lost(self, link: Link) -> None:
        """A connection is gone."""
        self._links.pop(link, None)
        if not self._links:
            self._all_lost.set()

    # Opening

    def _dials_already(self, peer: PeerState, hello: Hello) -> bool:
        """Whether a peer's hello is to be turned away because this host's own dial is the one that stays.

        The last case: the peer has accepted our link, but its own hello, sent before that, came only now. One that
        knows this host by another name did not know what it has, and is let in.
        """
        if peer.address < self.address or hello.to != self.address:
            return False
        if peer.trying is not None and peer.trying.has_greeted:
            return True
        link = peer.link
        return (
            link is not None
            and link.dialled is not None
            and link.nonce == hello.nonce
            and self._now() - link.opened_at < self.bounds.connect_timeout_s
        )

    def _open(self, peer: PeerState, link: Link, hello: Hello) -> None:
        now = self._now()
        old, peer.link = peer.link, link
        if old is not None:
            old.close("a newer link took its place", now + self.bounds.close_s_max)
        self._acceptor.strangers.pop(link, None)
        link.peer = peer
        link.nonce = hello.nonce
        link.opened_at = link.used_at = now
        link.open(self.bounds.frame_bytes_max)
        if peer.linked_before:
            peer.counters.reconnects += 1
        self._notices.linked(peer, hello.name)
        peer.linked_before = True
        peer.greeting = hello
        peer.has_left = peer.is_lost = False
        peer.refusal = peer.by = ""
        peer.silent_since = inf
        if self.on_linked is not None:
            self.on_linked(hello.identity, peer.address)
        peer.flush(now)
        self.hurry()  # where one is reached again, others may be, too

    # Upkeep

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.bounds.sweep_s)
            now = self._now()
            for link in list(self._links):
                self._look_at(link, now)
            for peer in self.peers.all():
                self._dialler.dial_if_wanted(peer)
                if peer.is_forgettable and now - peer.dial_at > self.bounds.idle_s_max:
                    self.peers.forget(peer)

    def _look_at(self, link: Link, now: float) -> None:
        """Ends a link that is too slow at hello or goodbye, idle, or stuck."""
        if now > link.deadline:
            if link.is_closed:
                link.abort("its last bytes were not taken")
            else:
                text = f"no hello within {self.bounds.connect_timeout_s} s"
                self.on_fault(link, LinkError(Fault.TIMEOUT, text))
        elif link.peer is None or link.is_closed:
            return
        elif link.is_stuck(now, self.bounds.stall_s_max):
            text = f"it has taken nothing for {self.bounds.stall_s_max} s, and {link.unsent_bytes} bytes wait for it"
            self.on_fault(link, LinkError(Fault.STALL, text))
        elif link.is_idle(now, self.bounds.idle_s_max):
            link.close(f"nothing passed for {self.bounds.idle_s_max} s", now + self.bounds.close_s_max)

    def _now(self) -> float:
        return time.monotonic()


def _no(_frame: bytes) -> bool:
    return False
