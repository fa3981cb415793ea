"""All message processors of a broker: what is published goes to those whose topic it is, and what they say goes out.

A processor stands beside the publishers: it gets what clients of its own broker publish, without a subscription that
others would see. With `where = "here"` it gets what all clients of the braid publish, and the broker subscribes for it.
What processors say is published as a client's publication would be. It carries the number of processors that it came
through; beyond HOPS_MAX it is taken for a loop and dropped.

The queue in front of a processor has bounds. QoS 0 is dropped first, and counted; QoS 1 and 2 wait longer, and are
dropped with an error. Nothing that happens in a processor holds up the broker or another processor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.broker.message import Message
from braidmq.broker.recorder import LOST, NOT_LOGGED
from braidmq.log.properties import pairs_of, published_us_of
from braidmq.mqtt.trees import FilterTree
from braidmq.mqtt.wire import string
from braidmq.processing.assignment_store import AssignmentStore, Left, SavedSpool
from braidmq.processing.assignments import TopicAssignment, TopicAssignments
from braidmq.processing.envelope import forward_of
from braidmq.processing.error_reports import Reports
from braidmq.processing.feed import ProcessorFeed
from braidmq.processing.reassignment import Changes
from braidmq.processing.restoring import restored
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import Item
from braidmq.processors.frames import encode_message
from braidmq.processors.hops import HOPS_MAX, hops_of, loop_words
from braidmq.processors.loading import is_file, split_source
from braidmq.processors.placement import Capacity, turn_at
from braidmq.processors.processor import Message as Publication
from braidmq.processors.processor import Output

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.config.settings import ProcessingConfig, ProcessorConfig
    from braidmq.server.log_recorder import LogRecorder

SETTLE_S: Final = 10.0
"""How long the start of the broker waits for its processors to be loaded."""
DRAIN_S: Final = 2.0
"""What workers get to finish when the broker ends; the rest waits for the next start."""
DRAIN_POLL_S: Final = 0.01
SENDER_PREFIX: Final = "$processor/"
FAR_REPORTS_MAX: Final = 64
"""Processors on Spark only, of which errors are counted within a second."""

_log = logging.getLogger("braidmq.processing")


class Processing:
    """From start to stop. `origin` is this broker's name, as messages carry it."""

    def __init__(
        self, broker: Broker, origin: str, folder: Path | None, sync: bool, settings: ProcessingConfig
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.places = TopicAssignments(AssignmentStore(folder, sync), _capacity(settings))
        self.stations: list[ProcessorRunner] = []
        self.changes = Changes(self)
        self.log: LogRecorder | None = None
        """The log, if there is one."""
        self._origin = origin
        self._reports: dict[ProcessorRunner, Reports] = {}
        self._far_reports: dict[str, Reports] = {}
        """Of processors that are on Spark only."""
        left = self.places.placements.take_left()
        self._saved = {(name, spool.topic): spool for name, one in left.items() for spool in one.spools}
        """Spools of before the start, until their topic comes again."""
        self._had_left = frozenset(left)
        """The processors that a clean end has left something of."""
        self._waited = {name: one.queue for name, one in left.items() if one.queue}
        """What waited for a worker before the start, until its processor is there."""
        self._digests: dict[ProcessorRunner, bytes] = {}
        self._tree: FilterTree[list[ProcessorRunner]] = FilterTree()
        self._standing: dict[ProcessorRunner, tuple[str, bool]] = {}
        """The filter of each processor that gets messages, and whether the broker subscribes to it."""
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        broker.router.feed_for = self._feed_for

    # From start to stop

    async def start(self, configs: Sequence[ProcessorConfig], log: LogRecorder | None) -> None:
        """Returns when all processors are loaded, or refused, or take too long for that."""
        for config in configs:
            self._add(config)
        self._follow(log)
        if self.stations:
            waiting = [asyncio.ensure_future(station.settled.wait()) for station in self.stations]
            _, late = await asyncio.wait(waiting, timeout=SETTLE_S)
            for one in late:
                one.cancel()
            if late:
                _log.warning("%d processors are not loaded after %g s; the broker starts", len(late), SETTLE_S)
            if log is not None:
                await self._restore(log)
        self._sweeper = asyncio.get_running_loop().create_task(self.changes.keep_sweeping())

    async def _restore(self, log: LogRecorder) -> None:
        """Gets the spools of processors that no clean end has left, as far as their topics are in the log."""
        unsaved = [
            one.ready
            for one in self.stations
            if one.ready is not None and one.config.where == "publishers" and one.name not in self._had_left
        ]
        since = self.broker.now() - self.settings.idle_s
        for ready, spools in await restored(log, unsaved, self.settings.storage_bytes_max, since):
            for one in spools:
                self._saved[ready.name, one.topic] = SavedSpool(one.topic, True, one.last, one.messages, one.used_at)

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.changes.stay_all()
        await self._drain()
        for station in self.stations:
            self._unroute(station)
        left = self._left()
        await asyncio.gather(*[station.stop() for station in self.stations], *self._stopping)
        try:
            self.places.placements.leave(left)
            self.places.placements.close()
        except OSError as error:
            _log.error("the spools of processors could not be written: %s", error)

    def reconfigure(
        self, configs: Sequence[ProcessorConfig], settings: ProcessingConfig, log: LogRecorder | None
    ) -> None:
        """Takes new settings over: a processor whose settings or file have changed is loaded again, with its spools."""
        self.settings = settings
        self.places.capacity = _capacity(settings)
        left = list(self.stations)
        new: list[ProcessorConfig] = []
        for config in configs:
            station = next((one for one in left if one.config == config), None) or next(
                (one for one in left if (one.config.file, one.config.name) == (config.file, config.name)), None
            )
            if station is None:
                new.append(config)
                continue
            left.remove(station)
            station.tries_max = settings.tries_max
            digest = _digest(config)
            if config != station.config or digest != self._digests[station] or station.state == "refused":
                self._digests[station] = digest
                station.restart(config)
        for station in left:
            self._remove(station)
        for config in new:
            self._add(config)
        self._follow(log)

    def _follow(self, log: LogRecorder | None) -> None:
        """Messages say of themselves what their rows in the log say."""
        self.log = log
        if log is not None:
            self._origin = log.origin

    def _add(self, config: ProcessorConfig) -> None:
        station = ProcessorRunner(config, self.settings.tries_max, self)
        self.stations.append(station)
        self._digests[station] = _digest(config)

    def _remove(self, station: ProcessorRunner) -> None:
        self._unroute(station)
        self.stations.remove(station)
        self._digests.pop(station, None)
        self._reports.pop(station, None)
        if station.ready is not None:
            for spot in [one for one in self.places if one.key[0] == station.name]:
                self.places.forget(spot)
        task = asyncio.get_running_loop().create_task(station.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _drain(self) -> None:
        """Gives workers a moment to finish what they have."""
        ends_at = asyncio.get_running_loop().time() + DRAIN_S
        while any(station.state == "running" and len(station.line) for station in self.stations):
            if asyncio.get_running_loop().time() > ends_at:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    def _left(self) -> dict[str, Left]:
        """What processors have seen and what waits for them, for the next start."""
        left: dict[str, Left] = {name: Left([], queue) for name, queue in self._waited.items()}
        latest = self.broker.now() - self.settings.idle_s
        for (name, _), spool in self._saved.items():
            if spool.used_at > latest:
                left.setdefault(name, Left([], [])).spools.append(spool)
        for station in self.stations:
            own = left.setdefault(station.name, Left([], []))
            for topic, kept in station.line.spools.items():
                spot = self.places.get((station.name, topic))
                if spot is not None:
                    own.spools.append(SavedSpool(topic, spot.is_logged, kept.last, tuple(kept.messages), spot.used_at))
            for item in station.line.items:
                spot = self.places.get((station.name, item.topic))
                own.queue.append((item, spot is not None and spot.is_logged))
        return {name: one for name, one in left.items() if one.spools or one.queue}

    # Routes

    def _feed_for(self, topic: str) -> ProcessorFeed | None:
        if not len(self._tree):
            return None
        stations = [station for found in self._tree.match(topic) for station in found]
        return ProcessorFeed(self, topic, stations) if stations else None

    def _route(self, station: ProcessorRunner, topic_filter: str, is_wide: bool) -> None:
        if self._standing.get(station) == (topic_filter, is_wide):
            return
        self._unroute(station)
        self._standing[station] = (topic_filter, is_wide)
        found = self._tree.get(topic_filter)
        if found is None:
            self._tree.set(topic_filter, [station])
        else:
            found.append(station)
        if is_wide:
            self.broker.router.hold(topic_filter)
        self._changed(topic_filter, True)

    def _unroute(self, station: ProcessorRunner) -> None:
        topic_filter, is_wide = self._standing.pop(station, ("", False))
        found = self._tree.get(topic_filter) if topic_filter else None
        if found is None:
            return
        found.remove(station)
        if not found:
            self._tree.remove(topic_filter)
        if is_wide:
            self.broker.router.release(topic_filter)
        self._changed(topic_filter, False)

    def _changed(self, topic_filter: str, wanted: bool) -> None:
        """Routes and demand are other ones now."""
        self.broker.router.forget(topic_filter)
        self.broker.federation.on_processed(topic_filter, wanted)

    # Messages in

    def take(self, stations: list[ProcessorRunner], message: Message, offset: int, is_here: bool) -> None:
        """One publication, for these processors; `offset` is the log's, or NOT_LOGGED, or LOST."""
        now = self.log.at if self.log is not None and offset >= 0 else round(self.broker.now(), 6)
        pairs = pairs_of(message.forward)
        said_us = published_us_of(pairs) if pairs else None
        counted = -1
        raws: dict[int, bytes] = {}
        for station in stations:
            is_logged = offset != NOT_LOGGED and station.config.where == "publishers"
            if is_logged and offset == LOST:  # whose turn it is goes by what is in the log, and it is not
                station.counts.dropped += 1
                continue
            if not is_logged and counted < 0:
                counted = self._count()
            own = offset if is_logged else counted
            raw = raws.get(own)
            if raw is None:
                published_at = round(message.at, 6) if message.at and not is_here else now
                if said_us is not None:
                    published_at = said_us / 1e6
                client = message.sender or None
                raw = raws[own] = encode_message(
                    Publication(
                        message.topic,
                        message.payload,
                        message.qos,
                        message.retain,
                        published_at,
                        now,
                        self._origin if is_here else "",
                        client,
                        pairs,
                        own,
                    )
                )
            item = Item(message.topic, raw, own, message.qos, hops_of(pairs) if pairs else 0)
            self._give(station, item, is_logged, message.sender, now)

    def offset_of(self, is_logged: bool) -> int:
        """The offset of what has just been given to the log, or not."""
        return self.log.last if is_logged and self.log is not None else NOT_LOGGED

    def _count(self) -> int:
        """The next offset of what is not logged."""
        try:
            return self.places.placements.take_offsets(1)
        except OSError as error:
            _log.error("the count of messages for processors could not be written: %s", error)
            return self.places.placements.take_offsets(0) - 1

    def _give(self, station: ProcessorRunner, item: Item, is_logged: bool, client: str, now: float) -> None:
        spot = self.places.get((station.name, item.topic))
        if spot is None or spot.is_logged != is_logged or spot.place is None or spot.last < 0:
            if spot is not None and spot.is_logged != is_logged:
                station.forget(item.topic)
            try:
                spot = self._find(station, item, is_logged, now)
            except OSError as error:
                station.counts.dropped += 1
                self.on_error(station, "room", f"the place of the topic cannot be written: {error}", item)
                return
        else:
            spot.last = item.offset
            spot.used_at = now
        if client:
            self.places.note_publisher(spot, client, now)
        if spot.is_changing:
            self.changes.hold(station, spot, item)
        elif spot.place == "edge":
            self._queue(station, item)
        elif spot.place == "spark":
            if spot.returns_at < 0 or not self.places.hold(spot, item):
                station.counts.delegated += 1
        else:
            station.counts.dropped += 1
            text = (
                f"no room for the topic, and it is not logged: raise processing.storage_bytes_max, or log {item.topic}"
            )
            self.on_error(station, "room", text, item)

    def _find(self, station: ProcessorRunner, item: Item, is_logged: bool, now: float) -> TopicAssignment:
        key = (station.name, item.topic)
        is_new = self.places.get(key) is None
        spot = self.places.find(key, station.line, item.offset, len(item.raw), is_logged, now)
        if is_new and spot.place is not None:
            saved = self._saved.pop(key, None)
            if saved is not None and spot.place == "edge" and saved.is_logged == is_logged and saved.last < item.offset:
                station.fill(item.topic, saved.last, list(saved.messages))
                self.places.note_size(spot, station.line)
        return spot

    def _queue(self, station: ProcessorRunner, item: Item) -> None:
        line, settings = station.line, self.settings
        waiting = len(line)
        if item.qos == 0 and waiting >= settings.queue_qos0_max:
            station.counts.dropped += 1
        elif waiting >= settings.queue_messages_max or line.bytes + len(item.raw) > settings.queue_bytes_max:
            station.counts.dropped += 1
            if item.qos:
                text = f"{waiting:,} messages wait, so this one of QoS {item.qos} is dropped"
                self.on_error(station, "queue", text, item)
        else:
            station.put(item)

    # What stations tell

    def on_ready(self, station: ProcessorRunner) -> None:
        ready = station.ready
        assert ready is not None
        others = [one for one in self.stations if one is not station and one.ready is not None]
        if any(one.name == ready.name for one in others):
            station.refuse(f"another processor is called {ready.name}: give one of them a name of its own")
            return
        if station not in self._reports:
            _log.info("processor %s takes %s", ready.name, ready.topic)
        self._reports[station] = Reports(self.broker, ready.name)
        self._route(station, ready.topic, station.config.where == "here")
        for item, is_logged in self._waited.pop(ready.name, []):
            self._resume(station, item, is_logged)

    def _resume(self, station: ProcessorRunner, item: Item, is_logged: bool) -> None:
        """A message that waited when the broker ended. Its topic may have gone to Spark since it came."""
        key = (station.name, item.topic)
        spot = self.places.get(key)
        if spot is None or spot.place != "spark":
            self._give(station, item, is_logged, "", self.broker.now())
        elif turn_at(self.places.placements.turns(key), item.offset) == "edge":
            saved = self._saved.pop(key, None)
            if saved is not None:
                station.fill(item.topic, saved.last, list(saved.messages))
            station.put(item)

    def on_refused(self, station: ProcessorRunner) -> None:
        self._unroute(station)

    def on_output(self, station: ProcessorRunner, item: Item, output: Output) -> None:
        """Publishes what a processor says."""
        broker = self.broker
        limits = broker.limits
        if item.hops >= HOPS_MAX:
            self.on_error(station, "loop", loop_words(item.hops), item)
            return
        message = Message(
            output.topic,
            string(output.topic),
            output.payload,
            min(output.qos, limits.qos_max),
            output.retain and limits.retain,
            f"{SENDER_PREFIX}{station.name}",
            forward_of(output.properties, item.hops + 1),
            broker.now() + limits.message_expiry_max_s if limits.message_expiry_max_s else None,
        )
        if message.size > limits.packet_bytes_max:
            text = f"a notification of {message.size:,} bytes (limits.packet_bytes_max is {limits.packet_bytes_max:,})"
            self.on_error(station, "result", text, item)
            return
        if message.retain and (broker.degraded or (message.payload and not broker.retained.fits(message))):
            message.retain = False  # it is told, if it cannot be kept
        station.counts.notified += 1
        broker.publish(message)
        broker.request_flush()

    def on_done(self, station: ProcessorRunner, items: list[Item]) -> None:
        for topic in dict.fromkeys([item.topic for item in items]):
            spot = self.places.get((station.name, topic))
            if spot is None:
                if not station.line.has(topic):
                    station.forget(topic)
            elif spot.place == "edge":
                self.places.note_size(spot, station.line)
            elif spot.returns_at < 0 and not station.line.has(topic):
                station.forget(topic)  # it is Spark's now, and the last of it is done here

    def on_error(self, station: ProcessorRunner, what: str, text: str, item: Item | None) -> None:
        station.counts.errors += 1
        reports = self._reports.get(station)
        if reports is not None:
            reports.tell(what, text, item)
        else:
            _log.warning("processor %s: %s", station.name, text)

    def on_far_error(self, name: str, what: str, text: str, topic: str | None, offset: int | None) -> None:
        """An error of a processor on Spark; it may be one that this broker does not have."""
        station = next((one for one in self.stations if one.name == name), None)
        reports = None if station is None else self._reports.get(station)
        if station is not None:
            station.counts.errors += 1
        if reports is None:
            reports = self._far_reports.pop(name, None) or Reports(self.broker, name)
            self._far_reports[name] = reports
            if len(self._far_reports) > FAR_REPORTS_MAX:
                del self._far_reports[next(iter(self._far_reports))]
        reports.tell_of(what, text, topic, offset)

    def begin_read(self) -> Callable[[], None]:
        return self.broker.tick.begin_read()


def _capacity(settings: ProcessingConfig) -> Capacity:
    return Capacity(settings.storage_bytes_max, settings.compute_max)


def _digest(config: ProcessorConfig) -> bytes:
    """What a processor's file says, to know when it has changed."""
    place, _ = split_source(config.file)
    try:
        return hashlib.sha256(Path(place).read_bytes()).digest() if is_file(place) else b""
    except OSError:
        return b""
