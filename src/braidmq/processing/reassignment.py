"""Topics that change hands between this broker and Spark: because somebody asks for it, or because of the room here.

How a change is exact stands in `places`; here it is waited until the log has all that came before it, and meanwhile
what comes of the topic is held.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from braidmq.processing.assignments import HELD_MAX, MoveError, TopicAssignment
from braidmq.processors.processor import SpoolState

if TYPE_CHECKING:
    from braidmq.processing.processing import Processing
    from braidmq.processing.runner import ProcessorRunner
    from braidmq.processing.work_queue import Item

SWEEP_S: Final = 10.0
"""How often it is looked whether there is room for what was delegated, and what is unused."""
WRITTEN_S: Final = 5.0
"""How long the log may take to write what comes before a change of hands."""
WRITTEN_POLL_S: Final = 0.002

_log = logging.getLogger("braidmq.processing")


class Changes:
    def __init__(self, processing: Processing) -> None:
        self._processing = processing
        self._places = processing.places

    def station(self, name: str) -> ProcessorRunner:
        """A MoveError if there is none of this name."""
        for station in self._processing.stations:
            if station.name == name:
                return station
        names = ", ".join(one.name for one in self._processing.stations) or "none"
        raise MoveError(f"there is no processor {name} here, but: {names}")

    def spot(self, name: str, topic: str) -> TopicAssignment:
        spot = self._places.get((self.station(name).name, topic))
        if spot is None:
            raise MoveError(f"{name} has had no message of {topic} here")
        return spot

    # Both ways

    async def move(self, name: str, topic: str, place: str) -> TopicAssignment:
        """To Spark; or back, as soon as Spark has returned the spool. A MoveError or an OSError says why not."""
        station, spot = self.station(name), self.spot(name, topic)
        await (self._ask_back if place == "edge" else self._delegate)(station, spot)
        return spot

    async def _delegate(self, station: ProcessorRunner, spot: TopicAssignment) -> None:
        if spot.place == "spark":
            self._places.give_up_return(spot)
            return
        first = await self._pause(station, spot)
        try:
            self._places.delegate(spot, station.line, first)
        except (MoveError, OSError):
            self.stay(station, spot)
            raise
        spot.changes_at = -1
        spot.held = []  # Spark has it from the log
        if not station.line.has(spot.topic):
            station.forget(spot.topic)

    async def _ask_back(self, station: ProcessorRunner, spot: TopicAssignment) -> None:
        if spot.place != "spark" or spot.returns_at >= 0:
            return
        first = await self._pause(station, spot)
        try:
            self._places.ask_back(spot, station.line, first, self._processing.broker.now())
        except MoveError:
            self.stay(station, spot)
            raise
        spot.changes_at = -1

    async def _pause(self, station: ProcessorRunner, spot: TopicAssignment) -> int:
        """The offset that comes next, once all before it is in the log; what comes of the topic is held from now on."""
        log = self._processing.log
        if log is None or not spot.is_logged:
            raise MoveError(f"{spot.topic} is not logged, so Spark cannot read it: name it in log.topics")
        if spot.is_changing:
            raise MoveError(f"{spot.topic} is about to change hands")
        first = spot.changes_at = log.next_offset
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WRITTEN_S
        try:
            while not log.is_written(first):
                await asyncio.sleep(WRITTEN_POLL_S)
                if not spot.is_changing or loop.time() > ends_at:
                    raise MoveError(f"the log could not keep up with {spot.topic}: try again")
        except (MoveError, OSError):
            self.stay(station, spot)
            raise
        return first

    def hold(self, station: ProcessorRunner, spot: TopicAssignment, item: Item) -> None:
        """Keeps a message of a topic that is about to change hands; if there are too many, it does not change."""
        spot.held.append(item)
        if len(spot.held) >= HELD_MAX:
            self.stay(station, spot)

    def stay(self, station: ProcessorRunner, spot: TopicAssignment) -> None:
        """It does not change hands after all: what was held goes where it would have gone."""
        held, spot.held, spot.changes_at = spot.held, [], -1
        if spot.place == "edge":
            for item in held:
                station.put(item)
        else:
            station.counts.delegated += len(held)

    def stay_all(self) -> None:
        """The broker ends: whatever is about to change hands does not."""
        for spot in self._places:
            if spot.is_changing:
                self.stay(self.station(spot.key[0]), spot)

    def take_back(self, name: str, topic: str, first: int, state: SpoolState) -> None:
        """Spark returns a topic, with its spool; a MoveError if it is to go on with it."""
        station, spot = self.station(name), self.spot(name, topic)
        last, messages, held = self._places.take_back(spot, first, state)
        station.fill(topic, last, messages)
        self._places.note_size(spot, station.line)
        for item in held:  # they have waited within a bound of their own
            station.put(item)

    # By themselves

    async def keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        now = self._processing.broker.now()
        places = self._places
        places.sweep_publishers(now)
        places.sweep_returns(now)
        by_name = {station.name: station for station in self._processing.stations}
        for spot in [one for one in places if now - one.used_at > self._processing.settings.idle_s]:
            station = by_name.get(spot.key[0])
            if spot.place != "spark" and (station is None or not station.line.has(spot.topic)):
                places.forget(spot)
                if station is not None:
                    station.forget(spot.topic)
        changes = [(spot, self._delegate) for spot in places.surplus()]
        changes += [(spot, self._ask_back) for spot in places.recallable(now)]
        for spot, change in changes:
            try:
                if (station := by_name.get(spot.key[0])) is not None and not spot.is_changing:
                    await change(station, spot)
            except (MoveError, OSError) as error:
                _log.info("%s of %s stays where it is: %s", spot.topic, spot.key[0], error)
