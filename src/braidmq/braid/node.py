"""A broker on the network of its braid: the host, the overlay and the method that its configuration names."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from hashlib import sha256

from braidmq.braid.braid import Braid
from braidmq.braid.identity import identity_of
from braidmq.braid.inspect.status import BraidInspector
from braidmq.braid.membership.broker_records import ClientListener
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.roaming.client_homes import HomeRule
from braidmq.braid.transfer.accounting import weigh
from braidmq.broker.broker import Broker
from braidmq.config.braid_security import security_of
from braidmq.config.naming import lasting_address
from braidmq.config.settings import BraidConfig, HomeConfig, Listener
from braidmq.host import Host, Message
from braidmq.net.host import NetHost
from braidmq.overlay import Overlay
from braidmq.overlay.vectors import DIGITS_MAX, Vector
from braidmq.pubsub.method import Method
from braidmq.pubsub.registry import METHODS, MethodName, MethodSettings, OverlaySettings, message_kinds

PROTOCOL = "2"
"""What brokers say to each other: another number if a message changes so that other brokers cannot read it any more."""

SELECT = "braidmq.select."
"""Where the messages of selections are, which are those of every braid."""

LEAVE_S = 5.0
"""How long a broker that ends has to leave the braid in good order."""

INCARNATION_EPOCH_S = 1_750_000_000
INCARNATIONS_A_SECOND = 10
"""A restart is another incarnation: the tenths of a second since then."""

_log = logging.getLogger("braidmq.braid")


def messages_of(method: MethodName) -> list[type[Message]]:
    """All messages that brokers with this method send each other: those of the method, and those of every braid."""
    braid_wide = [kind for kind in message_kinds() if kind.__module__.startswith((f"{__package__}.", SELECT))]
    return [*METHODS[method].messages(), *braid_wide]


def vector_of(name: str) -> Vector:
    """A broker's membership vector in a Skip Graph: as good as random, and the same each time it starts."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) >> (64 - DIGITS_MAX)


class BraidNode:
    """From start to stop."""

    def __init__(
        self,
        broker: Broker,
        config: BraidConfig,
        listeners: Sequence[Listener] = (),
        homes: Sequence[HomeConfig] = (),
    ) -> None:
        self._homes = homes
        self._broker = broker
        self._config = config
        self._listeners = listeners
        self._identity = identity_of(broker, random.SystemRandom(), config.name, lasting_address(config))
        self.host = NetHost(
            config.listen,
            messages_of(config.method),
            name=self._identity.name,
            advertise=config.advertise,
            security=security_of(config),
            identity=self._identity.identity,
            terms={"braid.method": config.method, "protocol": PROTOCOL},
        )
        self.host.is_member = False
        self.host.weigh = weigh
        self.braid: Braid | None = None
        """From the start on."""

    @property
    def status(self) -> BraidInspector | None:
        """What can be told of the braid; from the start on."""
        return None if self.braid is None else self.braid.status

    async def start(self) -> None:
        """Listens for other brokers, and begins to join them. OSError if it cannot listen."""
        await self.host.start()
        config = self._config
        name = self._identity.name
        incarnation = int((time.time() - INCARNATION_EPOCH_S) * INCARNATIONS_A_SECOND)
        introducers = Introducers(self.host, config.join)
        overlay_, method = build(config, self.host, name, incarnation, introducers)
        self.braid = braid = Braid(
            self._broker,
            overlay_,
            method,
            name,
            incarnation,
            introducers,
            config.cluster,
            self._identity,
            config.method,
            CopySettings(config.copies, config.copies_required, config.failure_domain),
        )
        self._join_host(braid)
        self._tell_listeners(braid)
        self.set_homes(self._homes)
        self.host.spawn(self._enter(braid))

    def set_homes(self, homes: Sequence[HomeConfig]) -> None:
        """Which clients are at home where, whatever plans say, from now on."""
        self._homes = homes
        if self.braid is not None:
            self.braid.homes.rules = [HomeRule(one.broker, one.clients, one.topic) for one in homes]

    def set_listeners(self, listeners: Sequence[Listener]) -> None:
        """Where clients connect from now on; other brokers are told what of it is advertised."""
        self._listeners = listeners
        if self.braid is not None:
            self._tell_listeners(self.braid)
            self.braid.announce()

    def _tell_listeners(self, braid: Braid) -> None:
        advertised = [ClientListener(one.name, one.kind, one.advertise) for one in self._listeners if one.advertise]
        braid.membership.records.set_listeners(advertised)
        braid.sending.listener_kinds = {one.name: one.kind for one in self._listeners}

    def _join_host(self, braid: Braid) -> None:
        """What only a host with real links has."""
        admission = braid.membership.admission
        admission.refusals = lambda: self.host.refusals
        self.host.watch(admission.on_linked, braid.on_parted)
        braid.transfer.use_links(self.host, braid.overlay)

    async def _enter(self, braid: Braid) -> None:
        await braid.enter()
        self.host.is_member = True
        _log.info("%s is in the braid, at %s", braid.name, self.host.address)

    async def stop(self, is_polite: bool = True) -> bool:
        """Leaves, in good order if `is_polite` and that does not take too long: whether it did not."""
        if is_polite and self.braid is not None and self.braid.presence.is_in and not _is_alone(self.braid):
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self.braid.leave()
            except TimeoutError:
                is_polite = False
                _log.warning("left the braid without a word: that took more than %g s", LEAVE_S)
        if self.braid is not None:
            await self.braid.mirrors.finish()
        self.host.say_farewell()
        await self.host.stop()
        if self.braid is not None:
            self.braid.mirrors.close()
        return is_polite

    def lack_of_copies(self) -> str | None:
        """That fewer copies of the store are there than are wanted; None if there are enough, or none are wanted."""
        own = None if self.braid is None else self.braid.mirrors.own
        return None if own is None else own.lack

    def trouble(self) -> str | None:
        """Why this broker is not in its braid, None if it is."""
        return "this broker is just starting" if self.braid is None else self.braid.membership.admission.trouble

    def cut_paths(self) -> str | None:
        """Which brokers cannot be reached directly, for people; None if all can that anything is sent to."""
        ways = {} if self.braid is None else self.braid.detours.ways
        if not ways:
            return None
        named = {self.host.name_of(address): by for address, by in ways.items()}
        return "; ".join(
            f"{name} cannot be reached{f' directly: by {self.host.name_of(by)}' if by is not None else ''}"
            for name, by in sorted(named.items())
        )


def _is_alone(braid: Braid) -> bool:
    """Whether nobody else is in the braid: then there is nobody to tell."""
    own = braid.host.address
    return all(node.left.address == own == node.right.address for node in braid.overlay.view.own.values())


def build(
    config: BraidConfig, host: Host, name: str, incarnation: int, introducers: Introducers
) -> tuple[Overlay, Method]:
    """The overlay and the method that a configuration names."""
    entry = METHODS[config.method]
    overlay = entry.build_overlay(
        OverlaySettings(
            host=host,
            introduce=introducers,
            vector=lambda: vector_of(name),
            incarnation=incarnation,
            table_size=config.table_size,
        )
    )
    return overlay, entry.build_method(
        overlay, MethodSettings(name=name, cluster=config.cluster, incarnation=incarnation)
    )
