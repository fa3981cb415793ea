"""The network between brokers on loopback, in the hands of the test: a proxy before each, and a switch for each way.

A broker tells the others the address of its proxy (`braid.advertise`). What passes may be sealed, so the proxy asks the
system which broker's process has dialled (`dialler`): so it knows between whom a connection is. A pair can be cut in
two ways: its connections break and new ones are turned away (a router says no), or everything stops and goes on later
(a cable), in both directions or in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping

from tests.chaos.dialler import process_of
from tests.chaos.network import Network, Pair, Site, Way, ways_of
from tests.chaos.ports import free_ports

READ_BYTES = 65_536
HOST = "127.0.0.1"


class Switch:
    """The state of one way from a broker to another."""

    def __init__(self) -> None:
        self.is_cut = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.delay_s = 0.0
        """How long everything takes on this way."""
        self.wires: dict[asyncio.StreamWriter, None] = {}
        """The ends of connections in which something goes this way."""

    def abort_all(self) -> None:
        for writer in list(self.wires):
            writer.transport.abort()


class Proxy(Network):
    kind = "proxy"

    def __init__(self, processes: Callable[[], Mapping[int, int]]) -> None:
        """`processes` has the numbers of the brokers that run now, by the ids of their processes."""
        self._processes = processes
        self._chance = random.Random()
        self._doors: list[asyncio.Server] = []
        self._switches: dict[Way, Switch] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def open(self, number: int) -> Site:
        port, braid_port, admin_port = free_ports(3, self._chance)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._join(number, braid_port, reader, writer))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

        door = await asyncio.start_server(accept, HOST, 0)
        self._doors.append(door)
        return Site(HOST, port, braid_port, admin_port, f"{HOST}:{door.sockets[0].getsockname()[1]}")

    async def close(self) -> None:
        for door in self._doors:
            door.close()
        for switch in self._switches.values():
            switch.abort_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_delay(self, way: Way, delay_s: float) -> None:
        self._switch(way).delay_s = delay_s

    # Faults

    def cut(self, pair: Pair) -> None:
        for way in ways_of(pair):
            switch = self._switch(way)
            switch.is_cut = True
            switch.abort_all()

    def mute(self, way: Way) -> None:
        self._switch(way).flowing.clear()

    def heal(self, way: Way) -> None:
        switch = self._switch(way)
        switch.is_cut = False
        switch.flowing.set()

    @property
    def broken(self) -> list[Way]:
        return [way for way, switch in self._switches.items() if switch.is_cut or not switch.flowing.is_set()]

    def _switch(self, way: Way) -> Switch:
        return self._switches.setdefault(way, Switch())

    # Connections

    async def _join(self, number: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        with closing(writer), contextlib.suppress(OSError):
            processes = self._processes()
            process = process_of(writer.get_extra_info("peername")[1], processes)
            if process is None:  # it has been killed meanwhile
                return
            there, back = (self._switch(way) for way in ((processes[process], number), (number, processes[process])))
            if there.is_cut or back.is_cut:
                return
            await there.flowing.wait()
            await back.flowing.wait()  # the answer to the first packet of a connection does not come through
            far_reader, far_writer = await asyncio.open_connection(HOST, port)
            with closing(far_writer):
                there.wires.update({writer: None, far_writer: None})
                pumps = [
                    asyncio.ensure_future(_pump(reader, far_writer, there)),
                    asyncio.ensure_future(_pump(far_reader, writer, back)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    del there.wires[writer], there.wires[far_writer]


@contextlib.contextmanager
def closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, switch: Switch) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            await switch.flowing.wait()
            if switch.delay_s:
                loop.call_later(switch.delay_s, _write, writer, data)
            else:
                writer.write(data)
                await writer.drain()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
