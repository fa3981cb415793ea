"""A broker's mirrors, and what it mirrors for others: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.presence import Presence
from braidmq.braid.mirrors.choosing import MirrorChooser, machine_of
from braidmq.braid.mirrors.held_copies import FOLDER_NAME, HeldCopies
from braidmq.braid.mirrors.own_copies import OwnCopies
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.broker.broker import Broker
from braidmq.broker.journal_store import JournalStore
from braidmq.host import Address
from braidmq.overlay import Overlay


class MirrorParts:
    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        presence: Presence,
        introducers: Introducers,
        identity: str,
        settings: CopySettings,
    ) -> None:
        host = overlay.host
        store = broker.store if isinstance(broker.store, JournalStore) else None
        machine = machine_of(host.address)
        folder = None if store is None else store.path.parent / FOLDER_NAME
        is_synced = store is not None and store.journal.is_synced
        self._host = host
        self.held = HeldCopies(host, folder, is_synced, identity, machine, settings.failure_domain)
        self.own: OwnCopies | None = None
        """None if this broker has no journal, or wants no copies of it."""
        self._chooser: MirrorChooser | None = None
        if store is not None and settings.copies > 1:
            self.own = OwnCopies(broker, host, store.journal, settings)
            self.own.standstill.owner = identity
            self._chooser = MirrorChooser(
                host, presence, introducers, overlay, store.journal, self.own, identity, machine
            )
            self.own.on_surplus = self._chooser.drop_surplus

    def addresses(self) -> tuple[Address, ...]:
        """The brokers that have a copy of all that this one has."""
        return () if self.own is None else self.own.mirrors

    def start(self) -> None:
        """This broker is in the braid."""
        if self.own is not None and self._chooser is not None:
            self._host.spawn(self.own.keep_watch())
            self._host.spawn(self._chooser.keep_choosing())

    async def finish(self) -> None:
        """This broker ends: its mirrors get what they lack, and brokers whose mirror it is look for another."""
        self.held.say_farewell()
        if self.own is not None:
            await self.own.finish()

    def close(self) -> None:
        if self.own is not None:
            self.own.close()
        self.held.close()
