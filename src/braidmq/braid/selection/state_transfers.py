"""A stream goes on at another instance: what the old one knows of it goes along, and nothing is between the two.

A client that reserves `from` what it holds stops publishing until it is answered. Its broker asks that of the old
instance for the state; there, what the client had published is waited for, and the instance is told on
`$reservation/…`, behind all of it. An instance that subscribes to `$state/<component>/…` publishes what it knows of
the stream to `$state/<id>`; the new one gets it as `$state/<component>/<id>`, before anything of the stream. One that
does not has no state to hand over. All of it is bounded: a stream that has waited too long goes on without.
"""

from __future__ import annotations

from typing import Final

from braidmq.bounded import BoundedDict
from braidmq.braid.selection.client_answers import ClientAnswers
from braidmq.braid.selection.group_names import component_of
from braidmq.braid.selection.holds import Holds
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.messages import AskState, GiveState, HoldState, StreamState
from braidmq.braid.transfer.awaited_predecessors import AwaitedPredecessors
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.component_topics import COMPONENT_PREFIX
from braidmq.broker.local_topics import STATE_PREFIX
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.select.member import Hold

STATE_BYTES_MAX: Final = 256 << 10
"""Of one stream, at an instance."""

TRANSFER_S: Final = 3.0
"""How long a stream waits for its state."""

AGAIN_S, AGAIN_S_MAX = 0.005, 0.05
"""The pause before it is asked for again; it doubles each time, up to a bound."""

CALL_S: Final = 1.0
GIVE_TRIES: Final = 3

HANDING_OVER_MAX: Final = 10_000
"""Streams that are handed over at a time, at one broker."""


class _HandingOver:
    """One stream, at the broker of its old instance."""

    __slots__ = ("is_told", "state")

    def __init__(self) -> None:
        self.is_told = False
        """Whether the instance knows."""
        self.state: bytes | None = None


class StateTransfers(Service):
    def __init__(
        self,
        host: Host,
        instances: Instances,
        holds: Holds,
        answers: ClientAnswers,
        origin: str,
        predecessors: Predecessors,
        awaited: AwaitedPredecessors,
    ) -> None:
        """`origin` names this broker's own history; `predecessors` knows what clients here have published last,
        `awaited` whether what others' clients have is here."""
        self._host = host
        self._instances = instances
        self._holds = holds
        self._answers = answers
        self._origin = origin
        self._predecessors = predecessors
        self._awaited = awaited
        self._handing_over: BoundedDict[str, _HandingOver] = BoundedDict(HANDING_OVER_MAX)
        """By the id of the old request."""
        self.brought = self.given_up = 0
        """Streams that have gone on with what was known of them, and those that had to go on without."""
        host.serve(self)

    # At the broker of the client

    async def bring(self, component: str, holder: str, old: tuple[str, Address], new: tuple[str, Address]) -> bool:
        """Has what the old instance knows of a stream given to the new one; whether there was anything, in time.

        `old` and `new` are ids of requests, and where what they have reserved is.
        """
        published = tuple(
            one for topic, one in self._predecessors.last(holder) if topic.startswith(f"{COMPONENT_PREFIX}{component}/")
        )
        state = await self._fetch(AskState(old[0], holder, published), old[1])
        if state is None:
            self.given_up += 1
        if not state:
            return False
        given: Reply
        told = GiveState(new[0], holder, state)
        if new[1] == self._host.address:
            given = self.on_give_state(new[1], told)
        else:
            given = await ask(self._host, new[1], told, HoldState, timeout_s=CALL_S, tries=GIVE_TRIES)
        is_given = isinstance(given, HoldState) and not given.problem
        self.brought += is_given
        return is_given

    async def _fetch(self, asked: AskState, address: Address) -> bytes | None:
        """What the old instance knows; empty if nothing, None if it was not told in time."""
        ends_at = self._host.now() + TRANSFER_S
        pause_s = AGAIN_S
        while self._host.now() < ends_at:
            told: Reply
            if address == self._host.address:
                told = self.on_ask_state(address, asked)
            else:
                told = await ask(self._host, address, asked, StreamState, timeout_s=CALL_S)
            if isinstance(told, StreamState) and told.is_known:
                return told.state
            await self._host.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
        return None

    # At the broker of the old instance

    @handles(AskState)
    def on_ask_state(self, _origin: Address, asked: AskState) -> Reply:
        hold = self._holds.held_by(asked.request, asked.holder)
        if hold is None:
            self._handing_over.pop(asked.request, None)
            return StreamState(True)
        handing_over = self._handing_over.get(asked.request)
        if handing_over is None:
            handing_over = self._handing_over[asked.request] = _HandingOver()
        if not handing_over.is_told:
            for one in asked.published:
                if one.origin != self._origin and not self._awaited.is_here(one):
                    self._awaited.wait((asked.request, one.origin), one, _nothing)
                    return StreamState(False)
            handing_over.is_told = True
            self._holds.tell_instance(hold, "handing-over")
            if not self._takes_part(hold):
                handing_over.state = b""
        if handing_over.state is None:
            return StreamState(False)
        return StreamState(True, handing_over.state)

    def on_state(self, client_id: str, known_as: str, payload: bytes) -> str:
        """An instance says what it knows of a stream that is handed over; why that is not taken, empty if it is."""
        request, _, _ = known_as.partition("@")
        handing_over = self._handing_over.get(request)
        hold = self._holds.held_by(request)
        if handing_over is None or hold is None or hold.component.name != client_id:
            return f"{known_as!r} is not handed over by this client"
        if len(payload) > STATE_BYTES_MAX:
            return f"a state of {len(payload):,} bytes: at most {STATE_BYTES_MAX:,}"
        handing_over.state = payload
        return ""

    def _takes_part(self, hold: Hold) -> bool:
        return self._answers.is_heard(hold.component.name, self._topic_of(hold))

    def _topic_of(self, hold: Hold) -> str:
        component = component_of(hold.request.group)
        return f"{STATE_PREFIX}{component}/{self._holds.known_as(hold)}"

    # At the broker of the new instance

    @handles(GiveState)
    def on_give_state(self, _origin: Address, told: GiveState) -> Reply:
        hold = self._holds.held_by(told.request, told.holder)
        if hold is None:
            return HoldState(0.0, "it is not reserved any more")
        self._answers.give(hold.component.name, self._topic_of(hold), told.state)
        return HoldState(0.0)


def _nothing() -> None:
    """It is asked again whether it is here."""
