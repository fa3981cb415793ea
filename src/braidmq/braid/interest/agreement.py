"""Agreement on a shape: every broker of the braid stands for the filters of that shape that its topics fit.

A wildcard subscription reaches the publishers that stand for its filter, and they find the filter by its shape. So
before it is made, all brokers are asked: have you taken this shape up? Topics that are published for the first time are
held until all is known about them, and need not be asked for; those that were known before the shape was join the
filter one after the other, and a broker says no until they have. After that, a subscription is all that they wait for.

The question goes to all brokers by a range delivery that is proven, and is put again until all say yes. It carries the
shape: it is also how a new one is made known. A broker that cannot be reached hears of it when it compares (`gossip`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.interest.shapes import SHAPE_KEPT_S, SHAPES_MAX, Shape, Shapes
from braidmq.braid.membership.home import HOME
from braidmq.host import Host
from braidmq.keys import Role, segment
from braidmq.overlay import Overlay
from braidmq.overlay.ranges import OnOutcome, Outcome, RangeArrival, RangeDelivery
from braidmq.pubsub.method import Method, ProvenMethod

AGREE_S = 2.0
"""How long a broker asks for an agreement before it subscribes without one."""

AGAIN_S, AGAIN_S_MAX = 0.02, 0.2
"""The pause before the question is put again; it doubles each time, up to a bound."""

AGREED_S = SHAPE_KEPT_S / 2
"""How long an agreement is taken for granted: no broker forgets a shape sooner."""

YES, NO = b"1", b"0"


class ShapeQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Have you taken this shape up?"""

    shape: Shape


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ShapeQuestion).decode


class ShapeAgreement:
    """One broker's side: it asks for the shapes of its own subscriptions, and answers other brokers."""

    def __init__(self, host: Host, overlay: Overlay, method: Method, shapes: Shapes) -> None:
        self.is_taking_up: Callable[[Shape], bool]
        """Whether topics here have yet to join the filters of a shape."""
        self._host = host
        self._method = method
        self._shapes = shapes
        self._agreed_at: BoundedDict[Shape, float] = BoundedDict(SHAPES_MAX)
        self._waiting: dict[Shape, list[Callable[[], None]]] = {}
        """By shape that is asked about now: what is to be done when that is through."""
        self._ranges = None if isinstance(method, ProvenMethod) else RangeDelivery(overlay, self._on_delivery)
        """To the keys at which all brokers stand, where the method cannot ask."""

    def when_reached(self, shape: Shape, action: Callable[[], None]) -> None:
        """Calls when all brokers have taken a shape up, or that takes too long."""
        at = self._agreed_at.get(shape)
        if at is not None and self._host.now() - at < AGREED_S:
            action()
        elif shape in self._waiting:
            self._waiting[shape].append(action)
        else:
            self._waiting[shape] = [action]
            self._host.spawn(self._reach(shape))

    async def _reach(self, shape: Shape) -> None:
        self._shapes.learn([shape], self._host.now())
        ends_at = self._host.now() + AGREE_S
        pause_s = AGAIN_S
        while (asked_at := self._host.now()) < ends_at:
            if await self._ask_all(shape, ends_at - asked_at):
                self._agreed_at.renew(shape, asked_at)
                break
            await self._host.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
        for action in self._waiting.pop(shape):
            action()

    async def _ask_all(self, shape: Shape, timeout_s: float) -> bool:
        outcomes: list[Outcome] = []
        answered = self._host.event()

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        try:
            self._ask(_encode(ShapeQuestion(shape)), timeout_s, on_outcome)
        except RuntimeError:  # too many deliveries are under way
            return False
        await answered.wait()
        return outcomes[0].complete and all(answer == YES for answer in outcomes[0].answers.values())

    def _ask(self, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        if self._ranges is not None:
            self._ranges.deliver(*segment(HOME, Role.PUBLISHER), body, timeout_s, on_outcome)
        elif isinstance(self._method, ProvenMethod):
            self._method.ask(HOME, body, timeout_s, on_outcome)

    def _on_delivery(self, delivery: RangeArrival) -> bytes | None:
        return self.on_question(delivery.body)

    def on_question(self, body: bytes) -> bytes | None:
        try:
            shape = _decode(body).shape
        except msgspec.MsgspecError:
            return None
        self._shapes.learn([shape], self._host.now())
        return NO if self.is_taking_up(shape) else YES
