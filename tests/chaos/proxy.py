"""The network between the brokers, in the hands of the test: a proxy before each broker, and a switch for each pair.

A broker tells the others the address of its proxy (`braid.advertise`). What passes may be sealed, so the proxy asks the
system which broker's process has dialled (`dialler`): so it knows between whom a connection is. A pair can be cut in
two ways: its connections break and new ones are turned away (a router says no), or everything stops and goes on later
(a cable).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

from tests.chaos.dialler import process_of

READ_BYTES = 65_536

Pair = tuple[int, int]
"""Two brokers, the smaller number first."""


def pair_of(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


class Switch:
    """The state of one pair's link."""

    def __init__(self) -> None:
        self.is_cut = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.wires: dict[asyncio.StreamWriter, None] = {}
        """Both ends of every connection."""

    def abort_all(self) -> None:
        for writer in list(self.wires):
            writer.transport.abort()


class Proxy:
    def __init__(self, processes: Callable[[], Mapping[int, int]]) -> None:
        """`processes` has the numbers of the brokers that run now, by the ids of their processes."""
        self._processes = processes
        self._doors: list[asyncio.Server] = []
        self._switches: dict[Pair, Switch] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def open(self, number: int, port: int) -> str:
        """A proxy before the broker that listens on a port; its address."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._join(number, port, reader, writer))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

        door = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._doors.append(door)
        return f"127.0.0.1:{door.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        for door in self._doors:
            door.close()
        for switch in self._switches.values():
            switch.abort_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Faults

    def cut(self, pair: Pair) -> None:
        """Connections of a pair break, and there are no new ones."""
        switch = self._switch(pair)
        switch.is_cut = True
        switch.abort_all()

    def stall(self, pair: Pair) -> None:
        """Nothing passes between a pair, and neither side is told."""
        self._switch(pair).flowing.clear()

    def heal(self, pair: Pair) -> None:
        switch = self._switch(pair)
        switch.is_cut = False
        switch.flowing.set()

    @property
    def broken(self) -> list[Pair]:
        return [pair for pair, switch in self._switches.items() if switch.is_cut or not switch.flowing.is_set()]

    def _switch(self, pair: Pair) -> Switch:
        return self._switches.setdefault(pair, Switch())

    # Connections

    async def _join(self, number: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        with closing(writer), contextlib.suppress(OSError):
            processes = self._processes()
            process = process_of(writer.get_extra_info("peername")[1], processes)
            if process is None:  # it has been killed meanwhile
                return
            switch = self._switch(pair_of(processes[process], number))
            if switch.is_cut:
                return
            await switch.flowing.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(far_writer):
                switch.wires.update({writer: None, far_writer: None})
                pumps = [
                    asyncio.ensure_future(_pump(reader, far_writer, switch)),
                    asyncio.ensure_future(_pump(far_reader, writer, switch)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    del switch.wires[writer], switch.wires[far_writer]


@contextlib.contextmanager
def closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, switch: Switch) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            await switch.flowing.wait()
            writer.write(data)
            await writer.drain()
