"""The broker in the real world: an event loop, sockets, signals and clocks.

A `Server` puts the parts of one broker together: the sans-IO core, its listeners, the node of the braid, processors and
the admin port. It calls `flush` once a loop tick and fires timers. `serve` runs one until SIGTERM or SIGINT, and reads
the configuration again on SIGHUP.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.braid.node import BraidNode
from braidmq.broker.broker import Broker
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.share_policies import SharePolicy
from braidmq.broker.store import MemoryStore, Store
from braidmq.config.clients import build_access, build_authenticator, build_methods
from braidmq.config.naming import broker_name
from braidmq.config.problems import ConfigError
from braidmq.config.reload import reload_plan
from braidmq.config.settings import AdminConfig, Config
from braidmq.journal.journal_writer import JournalWriter
from braidmq.processing.processing import Processing
from braidmq.security.client_ids import ClientIdRules
from braidmq.server import log_lines as logs
from braidmq.server.admin.braid_routes import BraidRoutes
from braidmq.server.admin.client_routes import ClientRoutes
from braidmq.server.admin.drain_routes import DrainRoutes
from braidmq.server.admin.log_routes import LogRoutes
from braidmq.server.admin.port import AdminServer
from braidmq.server.admin.processing_routes import ProcessingRoutes
from braidmq.server.admin.publish_routes import PublishRoutes
from braidmq.server.admin.selection_routes import SelectionRoutes
from braidmq.server.draining import Draining
from braidmq.server.journal_upkeep import keep_journals
from braidmq.server.listening.listeners import Listeners
from braidmq.server.metrics.braid_metrics import BraidCollector
from braidmq.server.metrics.exposition import Exposition
from braidmq.server.metrics.log_metrics import LogCollector
from braidmq.server.metrics.processing_metrics import ProcessingCollector
from braidmq.server.metrics.sys_topics import SysTopics

if TYPE_CHECKING:
    from braidmq.server.log_recorder import LogRecorder

STOP_GRACE_S = 5.0
"""What clients get to read their DISCONNECT when the broker stops."""

_log = logging.getLogger("braidmq.server")


class Server:
    """One broker with its listeners, from start to stop."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._store: Store = (
            JournalStore(Path(config.data), config.store.sync) if config.store.enabled else MemoryStore()
        )
        self._recorder: LogRecorder | None = None
        try:
            self._recorder = _recorder_of(config)
            self.broker = Broker(
                clock=time.monotonic,
                wall=time.time,
                limits=config.limits,
                store=self._store,
                recorder=self._recorder,
                authenticator=build_authenticator(config),
                methods=build_methods(config),
                access=build_access(config),
                client_ids=ClientIdRules(config.access),
                share_policies={one.group: SharePolicy(name=one.policy, key=one.key) for one in config.share},
                spawn=self._spawn,
                wants_flush=self._flush_soon,
            )
            self.listeners = Listeners(config, self.broker)
        except BaseException:
            self._close_files()
            raise
        self.broker.timers.earlier = self._set_alarm
        self._sys = SysTopics(self.broker)
        self._sys.set_interval(config.sys_interval_s)
        self._node = (
            None if config.braid is None else BraidNode(self.broker, config.braid, config.listeners, config.home)
        )
        self.draining = Draining(self._node)
        self._processing = _processing_of(config, self.broker)
        self._admin = None if config.admin is None else self._build_admin(config.admin)

    def _build_admin(self, settings: AdminConfig) -> AdminServer:
        exposition = Exposition(
            self.broker.metrics,
            self.listeners,
            LogCollector(lambda: self._recorder),
            ProcessingCollector(self._processing),
            *(() if self._node is None else (BraidCollector(self._node),)),
        )
        checks = {"listeners": self.listeners.trouble, "store": self._store_trouble}
        remarks = {}
        if self._node is not None:
            checks["braid"] = self._node.trouble
            remarks["braid"] = self._node.cut_paths
            remarks["copies"] = self._node.lack_of_copies
            checks["drain"] = self.draining.trouble
        routes = (
            BraidRoutes(self._node),
            SelectionRoutes(self._node),
            DrainRoutes(self.draining),
            ClientRoutes(self.broker, self._node),
            PublishRoutes(self.broker),
            LogRoutes(lambda: self._recorder),
            ProcessingRoutes(self._processing),
        )
        return AdminServer(settings, exposition, checks, routes, remarks)

    async def start(self) -> None:
        try:
            await self._processing.start(self.config.processor, self._recorder)
            if self._node is not None:  # first: the session of a client that connects may be at another broker
                await self._node.start()
                self._watch_copies(self._node)
            await self.listeners.start()
            if self._admin is not None:
                await self._admin.start()
        except BaseException:
            await self._processing.stop()
            await self.listeners.stop(0)
            if self._node is not None:
                await self._node.stop(is_polite=False)
            self._close_files()
            raise
        if isinstance(self._store, JournalStore):
            self._spawn(keep_journals(partial(self._journals, self._store)))
        self._set_alarm()

    async def stop(self, is_polite: bool = True) -> bool:
        """Accepts no more clients, tells those that are here and, if `is_polite`, the braid; commits, closes the store.

        Returns whether it left the braid in good order and in time.
        """
        self.listeners.stop_accepting()
        self.broker.shut_down()
        await self.listeners.stop(STOP_GRACE_S)
        await self._processing.stop()
        if self._node is not None:
            is_polite = await self._node.stop(is_polite)
        if self._admin is not None:
            await self._admin.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self.broker.flush()
        self._close_files()
        return is_polite

    def _close_files(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._store.close()

    @property
    def addresses(self) -> list[str]:
        braid = [f"braid://{self._node.host.address}"] if self._node else []
        return self.listeners.addresses + (self._admin.addresses if self._admin else []) + braid

    @property
    def braid_address(self) -> str | None:
        """Where other brokers reach this one."""
        return None if self._node is None else self._node.host.address

    @property
    def admin_url(self) -> str | None:
        return self._admin.addresses[0] if self._admin else None

    async def wait_until_in(self, timeout_s: float) -> bool:
        """Waits until this broker is in its braid, at most so long; returns whether it is."""
        braid = None if self._node is None else self._node.braid
        assert braid is not None, "it has a braid, and has started"
        return await braid.presence.entered.wait(timeout_s)

    def on_terminate(self, end: Callable[[], None]) -> None:
        """SIGTERM has come: ends, or drains first if that is configured."""
        braid = self.config.braid
        if braid is None or not self.draining.begin_at_signal(braid.drain_s):
            end()

    def reload(self, new: Config) -> None:
        """Applies what can be applied while running, and says what cannot."""
        plan = reload_plan(self.config, new)
        effective = plan.effective
        authenticator, methods, access = (
            build_authenticator(effective),
            build_methods(effective),
            build_access(effective),
        )
        self.listeners.reload(effective)
        logs.configure(effective.log)
        self.broker.reconfigure(effective.limits, authenticator, methods, access, ClientIdRules(effective.access))
        self._reload_log(effective)
        self._sys.set_interval(effective.sys_interval_s)
        if self._node is not None:
            self._node.set_listeners(effective.listeners)
            self._node.set_homes(effective.home)
        self._processing.reconfigure(effective.processor, effective.processing, self._recorder)
        self.config = effective
        for change in plan.applied:
            _log.info("reloaded %s", change)
        for change in plan.restart:
            _log.warning("needs a restart: %s", change)
        _log.info("reloaded: certificates, keys and password file, and %d changed keys", len(plan.applied))

    def _reload_log(self, config: Config) -> None:
        if self._recorder is None:
            self._recorder = _recorder_of(config)
        else:
            self._recorder.reconfigure(config.log)
        if self._recorder is not None:
            self.broker.set_recorder(self._recorder)

    def _journals(self, store: JournalStore) -> list[JournalWriter]:
        """The broker's own, and those of other brokers of which it holds copies."""
        braid = None if self._node is None else self._node.braid
        return [store.journal, *(() if braid is None else (copy.journal for copy in braid.mirrors.held))]

    def _watch_copies(self, node: BraidNode) -> None:
        """How many copies of the store there are is published when it changes."""
        own = None if node.braid is None else node.braid.mirrors.own
        if own is not None:
            own.on_changed = lambda: self._sys.publish("copies", own.text)
            own.on_changed()

    def _store_trouble(self) -> str | None:
        return "the store cannot be written" if self.broker.degraded else None

    # What the broker asks of the loop

    def _flush_soon(self) -> None:
        self._loop.call_soon(self.broker.flush)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_alarm(self) -> None:
        """Wakes the broker at its next deadline."""
        next_at = self.broker.timers.next_at
        if next_at is None:
            return
        if self._alarm is not None:
            if self._alarm_at <= next_at:
                return
            self._alarm.cancel()
        self._alarm_at = next_at
        self._alarm = self._loop.call_later(max(0.0, next_at - self.broker.now()), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        try:
            self.broker.run_timers()
        finally:
            self._set_alarm()


def _recorder_of(config: Config) -> LogRecorder | None:
    """Keeps the topics that the configuration names; without any, nothing of the log is even imported."""
    if not config.log.topics:
        return None
    from braidmq.server.log_recorder import open_recorder

    return open_recorder(config)


def _processing_of(config: Config, broker: Broker) -> Processing:
    """The processors of this site. Their spools are kept beside the store, if there is one."""
    folder = Path(config.data) / "processing" if config.store.enabled else None
    cluster = None if config.braid is None else config.braid.cluster
    return Processing(broker, broker_name(config), folder, config.store.sync == "full", config.processing, cluster)


async def serve(
    config: Config, announce: Callable[[list[str]], None], read_config: Callable[[], Config] | None = None
) -> int:
    """Runs a broker until SIGTERM or SIGINT, or until it is drained; returns the exit code.

    `announce` gets its addresses once clients can connect; `read_config` is called on SIGHUP.
    """
    logs.configure(config.log)
    server = Server(config)
    await server.start()
    rarely_collect_garbage()
    stop = asyncio.Event()
    server.draining.on_finished = stop.set
    on_end_signals(stop.set, partial(server.on_terminate, stop.set))
    if read_config is not None:
        on_reload_signal(lambda: server.reload(read_config()))
    announce(server.addresses)
    await stop.wait()
    _log.info("stopping")
    await server.stop()
    return 0


def rarely_collect_garbage() -> None:
    """Objects that stay are many and garbage cycles few: they are looked for seldom, and not among what is here now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def on_end_signals(interrupt: Callable[[], object], terminate: Callable[[], object]) -> None:
    """Calls at SIGINT, and at SIGTERM."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, terminate)


def on_reload_signal(reload: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, reload)


def _reload(reload: Callable[[], None]) -> None:
    """A new configuration that is wrong is reported, and the old one stays."""
    try:
        reload()
    except ConfigError as error:
        for problem in error.problems:
            _log.error("not reloaded: %s", problem)
    except OSError as error:
        _log.error("not reloaded: %s", error)
