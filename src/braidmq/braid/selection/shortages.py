"""Shortages of components, told before they are there: on `$shortage/<component>`, to whoever subscribes.

Every broker tells the delegate of a component, the first of those that have instances of it, how many slots are free
with it. The delegate follows the sum; where its trend reaches 0 soon, or nothing is free already, it publishes that,
and that it is over. Delegates may be two for a while, and one that is new has to look for a while before it knows a
trend: a forecast may come twice, or late.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.selection.group_names import group_topic
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.messages import RoomNoted, TellRoom
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import SHORTAGE_PREFIX
from braidmq.broker.message import Message, forwarded
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string
from braidmq.select import ComponentGroup, Selector
from braidmq.select.forecast import Forecast

SAMPLE_S: Final = 2.0
"""How often the delegate looks at what is free, and other brokers at whether they have something to tell it."""

REFRESH_S: Final = 30.0
"""How often a broker tells it though nothing has changed …"""

KEPT_S: Final = 100.0
"""… and how long it counts what it was told."""

REPEAT_S: Final = 30.0
"""How often a shortage is told that is still expected."""

WATCHED_MAX: Final = 1_000
"""Components that a broker is the delegate of."""

BROKERS_MAX: Final = 4_096
"""Brokers with instances of one component."""

TELL_TIMEOUT_S: Final = 1.0

_encode: Final = msgspec.json.Encoder().encode


class _Room(msgspec.Struct, frozen=True):
    """What a broker has of a component, as it was told at a time."""

    free: int
    slots: int
    at: float


class _Watch(msgspec.Struct):
    """A component, at its delegate."""

    rooms: BoundedDict[Address, _Room]
    forecast: Forecast
    slots: int = 0
    expected_in_s: float | None = None
    """When it is thought to run short, as was told last; None if that was nothing, or that it is over."""
    told_at: float = 0.0


class Shortages(Service):
    def __init__(self, broker: Broker, host: Host, selector: Selector, instances: Instances) -> None:
        self._broker = broker
        self._host = host
        self._selector = selector
        self._instances = instances
        self._watched: BoundedDict[str, _Watch] = BoundedDict(WATCHED_MAX)
        self._said: dict[str, _Room] = {}
        """By component: what its delegate knows of this broker."""
        self._is_running = False
        self.told = 0
        host.serve(self)

    @property
    def expected(self) -> int:
        """Of how many components a shortage is expected, or there, as far as this broker is their delegate."""
        return sum([one.expected_in_s is not None for one in self._watched.values()])

    def start(self) -> None:
        """There are instances here, or what others say of theirs is followed here."""
        if not self._is_running:
            self._is_running = True
            self._host.spawn(self._run())

    async def _run(self) -> None:
        while self._watched or self._said or any(True for _ in self._instances):
            await self._host.sleep(SAMPLE_S)
            for component in dict.fromkeys((*self._instances.members, *self._said)):
                await self._tell_delegate(component)
            for component in list(self._watched):
                self._look_at(component)
        self._is_running = False

    # As one that has instances

    async def _tell_delegate(self, component: str) -> None:
        now = self._host.now()
        member, said = self._instances.members.get(component), self._said.get(component)
        components = [] if member is None else list(member.components.values())
        room = _Room(sum([one.free for one in components]), sum([one.slots for one in components]), now)
        if said is None and not room.slots:
            return
        if said is not None and (said.free, said.slots) == (room.free, room.slots) and now < said.at + REFRESH_S:
            return
        group = _group(component)
        delegate = await self._selector.delegate_of(group)
        if delegate is None:
            self._said.pop(component, None)
            return
        told: Reply
        if delegate.address == self._host.address:
            told = self.on_tell_room(delegate.address, TellRoom(component, room.free, room.slots))
        else:
            asked = TellRoom(component, room.free, room.slots)
            told = await ask(self._host, delegate.address, asked, RoomNoted, timeout_s=TELL_TIMEOUT_S)
        if not isinstance(told, RoomNoted) or not told.is_delegate:
            self._selector.forget_delegate(group)
        elif room.slots:
            self._said[component] = room
        else:
            self._said.pop(component, None)

    # As a delegate

    @handles(TellRoom)
    def on_tell_room(self, origin: Address, told: TellRoom) -> Reply:
        if self._selector.delegates.seat(_group(told.component)) is None:
            return RoomNoted(False)
        watch = self._watched.get(told.component)
        if watch is None:
            watch = self._watched[told.component] = _Watch(BoundedDict(BROKERS_MAX), Forecast())
            self.start()
        watch.rooms.renew(origin, _Room(told.free, told.slots, self._host.now()))
        return RoomNoted(True)

    def _look_at(self, component: str) -> None:
        now, watch = self._host.now(), self._watched[component]
        for address in [one for one, room in watch.rooms.items() if room.at < now - KEPT_S or not room.slots]:
            del watch.rooms[address]
        if not watch.rooms or self._selector.delegates.seat(_group(component)) is None:
            del self._watched[component]
            return
        free, slots = sum([one.free for one in watch.rooms.values()]), sum([one.slots for one in watch.rooms.values()])
        watch.forecast.shift(slots - watch.slots)
        watch.slots = slots
        watch.forecast.note(now, free)
        in_s = watch.forecast.shortage_in_s(now) if free else 0.0
        if in_s is None and watch.expected_in_s is None:
            return
        if _is_news(watch.expected_in_s, in_s) or now >= watch.told_at + REPEAT_S:
            watch.expected_in_s, watch.told_at = in_s, now
            self._publish(component, in_s, free, slots)

    def _publish(self, component: str, in_s: float | None, free: int, slots: int) -> None:
        self.told += 1
        told: dict[str, Any] = {
            "component": component,
            "in": None if in_s is None else round(in_s, 1),
            "free": free,
            "slots": slots,
        }
        topic = SHORTAGE_PREFIX + component
        properties = forwarded(Properties(content_type="application/json"))
        expires_at = self._broker.now() + REPEAT_S
        self._broker.publish(Message(topic, string(topic), _encode(told), 1, forward=properties, expires_at=expires_at))
        self._broker.request_flush()


def _is_news(told_s: float | None, in_s: float | None) -> bool:
    """Whether it is another thing than was told: that it begins or is over, that nothing is free, or half the time."""
    if told_s is None or in_s is None:
        return True
    return (told_s == 0.0) != (in_s == 0.0) or in_s < told_s / 2


def _group(component: str) -> ComponentGroup:
    return ComponentGroup(group_topic(component), "")
