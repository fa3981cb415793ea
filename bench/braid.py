"""`python -m bench.braid`: what a braid of brokers costs and carries, beside two bridged Mosquittos.

Two brokers: a publisher at one and a subscriber at the other. Rates are ratios to Mosquittos bridged in the same run,
the latency with one message in flight is a ratio to the same broker alone. Three brokers in a ring: how many copies one
publication makes. Many brokers: how long until all are in, and what the braid costs them, used and unused.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import paho.mqtt.client as paho
import typer
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console
from rich.table import Table

from bench import client, loader
from bench.loader import Load, Sample
from bench.memory import resident_bytes
from bench.peers import BraidMQ, Mosquitto
from braidmq.pubsub.registry import METHOD_DEFAULT

START_S = 30.0
JOIN_S = 60.0
SETTLE_S = 3.0
WINDOW_S = 20.0
"""How long the upkeep of a braid is measured at a time."""

QUIET_MAX_S = 300.0
"""How long a braid has to become quiet."""

STILL_FALLING = 0.8
"""A braid is quiet when its upkeep is more than this part of what it was a moment ago."""

ARRIVE_S = 120.0
"""How long all deliveries may take; then they are counted."""

ASK_S = 60.0

PACE_S = 0.025
"""Between two subscriptions, or two new topics: all brokers are in one process, and join for each of them."""

TOPICS = 1000
PAYLOAD = b"x" * 100

console = Console(width=max(120, Console().width))


class Ratio(msgspec.Struct, frozen=True):
    """A figure beside its target."""

    name: str
    value: float
    low: float
    high: float
    target: str
    is_reached: bool


@contextlib.contextmanager
def process(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, ended by its id."""
    with (folder / "output").open("ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for_mqtt(port: int) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at:
        with (
            contextlib.suppress(OSError, client.RefusedError),
            client.send_connect(port, "probe", keep_alive_s=60, timeout_s=2.0) as probe,
        ):
            client.read_connack(probe)
            return
        time.sleep(0.1)
    raise SystemExit(f"no broker answered on port {port} within {START_S:.0f} s")


# Two brokers


@contextlib.contextmanager
def braided_pair(folder: Path, method: str, copies: int = 1) -> Iterator[tuple[int, int]]:
    """Two braided brokers, each a process of its own, with so many copies of their journals."""
    ports = [client.free_port() for _ in range(2)]
    links = [client.free_port() for _ in range(2)]
    admin = [client.free_port() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for number, (port, link) in enumerate(zip(ports, links, strict=True)):
            own = folder / f"braid{copies}-{number}"
            own.mkdir()
            command = [str(BraidMQ.executable), "up", "--port", str(port), "--data", str(own / "data")]
            command += ["--braid", f"127.0.0.1:{link}", "--set", f"braid.method={method}", "--log-level", "warning"]
            command += ["--set", f"braid.copies={copies}", "--admin-port", str(admin[number])]
            command += ["--join", f"127.0.0.1:{links[0]}"] if number else []
            stack.enter_context(process(command, own))
        for port in ports:
            wait_for_mqtt(port)
        for port in admin:
            _wait_for_copies(port, copies)
        time.sleep(SETTLE_S)
        yield ports[0], ports[1]


def _wait_for_copies(admin_port: int, copies: int) -> None:
    """Until other brokers have as many copies of a broker's journal as they should."""
    ends_at = time.monotonic() + JOIN_S
    while time.monotonic() < ends_at:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=ASK_S) as answer:
            lines = answer.read().decode().splitlines()
        found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("braidmq_braid_copies ")]
        if found and found[0] >= copies:
            return
        time.sleep(0.2)
    raise SystemExit(f"a broker has fewer than {copies} copies of its journal after {JOIN_S:.0f} s")


@contextlib.contextmanager
def bridged(folder: Path, count: int, *, ring: bool = False) -> Iterator[list[int]]:
    """Mosquittos in a line, or in a ring, each bridged to the next with all topics both ways."""
    executable = Mosquitto().executable()
    if executable is None:
        raise SystemExit("Mosquitto is not installed: apt install mosquitto")
    ports = [client.free_port() for _ in range(count)]
    with contextlib.ExitStack() as stack:
        for number, port in enumerate(ports):
            own = folder / f"mosquitto{number}"
            own.mkdir(exist_ok=True)
            text = f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest none\nuser {getpass.getuser()}\n"
            if number or ring:
                text += f"connection to{number}\naddress 127.0.0.1:{ports[number - 1]}\ntopic # both 0\n"
            (own / "config").write_text(text)
            stack.enter_context(process([executable, "-c", str(own / "config")], own))
        for port in ports:
            wait_for_mqtt(port)
        time.sleep(SETTLE_S)
        yield ports


def measure(load: Load, publish_at: int, subscribe_at: int, seconds: int, prefix: str) -> Sample:
    command = [*loader.command(load, publish_at, seconds), "-b", str(subscribe_at), "-x", prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + loader.GRACE_S, check=False)
    figures = loader.LINE.search(done.stdout)
    if figures is None:
        raise SystemExit(done.stderr.strip() or "the load generator gave no figures")
    return Sample(*map(int, figures.groups()))


def pairs(folder: Path, method: str, rounds: int, seconds: int) -> list[Ratio]:
    many = Load(publishers=1, subscribers=1, topics=1, qos=0)
    one = Load(publishers=1, subscribers=1, topics=1, qos=0, window=1)
    rates: list[float] = []
    latencies: list[float] = []
    table = Table(
        "round", "braided", "bridged Mosquittos", "one in flight: braided", "alone", title="Two brokers, QoS 0"
    )
    with braided_pair(folder, method) as ours, bridged(folder, 2) as theirs:
        for number in range(1, rounds + 1):
            braided = measure(many, *ours, seconds, f"a{number}")
            other = measure(many, theirs[0], theirs[1], seconds, f"a{number}")
            two = measure(one, *ours, seconds, f"b{number}")
            alone = measure(one, ours[0], ours[0], seconds, f"c{number}")
            rates.append(braided.out_per_s / max(1, other.out_per_s))
            latencies.append(two.p50_us / max(1, alone.p50_us))
            table.add_row(
                str(number),
                f"{braided.out_per_s:,}/s (lost {braided.lost})",
                f"{other.out_per_s:,}/s (lost {other.lost})",
                f"p50 {two.p50_us} µs",
                f"p50 {alone.p50_us} µs",
            )
    console.print(table)
    rate, latency = statistics.median(rates), statistics.median(latencies)
    return [
        Ratio("throughput to bridged Mosquittos", rate, min(rates), max(rates), "≥ 3", rate >= 3),
        Ratio("latency to the broker alone", latency, min(latencies), max(latencies), "≤ 2", latency <= 2),
    ]


# Three in a ring


def copies(ports: list[int], seconds: float) -> int:
    """How often one publication at the first broker arrives at the second's subscriber within some time."""
    got: list[bytes] = []
    subscriber = _connected(ports[1], lambda _c, _u, message: got.append(message.payload))
    subscriber.subscribe("ring/one")
    publisher = _connected(ports[0], None)
    time.sleep(SETTLE_S)
    publisher.publish("ring/one", b"1").wait_for_publish(5)
    time.sleep(seconds)
    for one in (subscriber, publisher):
        one.loop_stop()
        one.disconnect()
    return len(got)


def _connected(port: int, on_message: Any) -> paho.Client:
    one = paho.Client(CallbackAPIVersion.VERSION2)
    one.on_message = on_message
    one.connect("127.0.0.1", port)
    one.loop_start()
    return one


# Many brokers


class Braid:
    """Brokers in one process, asked by their admin ports."""

    def __init__(self, folder: Path, count: int, method: str) -> None:
        self.folder = folder
        command = [str(BraidMQ.executable), "up", "--brokers", str(count), "--port", "0", "--admin-port", "0"]
        command += ["--data", str(folder / "data"), "--json", "--set", f"braid.method={method}", "--log-level", "error"]
        self.began_at = time.monotonic()
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True)
        assert self.child.stdout is not None
        ready = json.loads(self.child.stdout.readline())
        addresses = [site["addresses"] for site in ready["sites"]]
        self.mqtt = [int(some[0].rpartition(":")[2]) for some in addresses]
        self.admin = [next(one for one in some if one.startswith("http://")) for some in addresses]

    def ask(self, number: int, path: str) -> Any:
        with urllib.request.urlopen(self.admin[number] + path, timeout=ASK_S) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def wait_until_in(self) -> float:
        """Seconds until every broker is in the braid."""
        waiting = list(range(len(self.admin)))
        while waiting and time.monotonic() - self.began_at < 2 * JOIN_S:
            waiting = [number for number in waiting if not self.ask(number, "/braid").get("is_in")]
            time.sleep(0.2)
        if waiting:
            raise SystemExit(f"{len(waiting)} brokers are not in the braid after {2 * JOIN_S:.0f} s")
        return time.monotonic() - self.began_at

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric over all brokers, and over all labels or those that contain `label`."""
        total = 0.0
        for number in range(len(self.admin)):
            for line in str(self.ask(number, "/metrics")).splitlines():
                if line.startswith(name) and line[len(name)] in " {" and label in line:
                    total += float(line.rpartition(" ")[2])
        return total

    def close(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def many(folder: Path, count: int, method: str) -> Ratio:
    braid = Braid(folder, count, method)
    table = Table("figure", "value", title=f"{count} brokers in one process, {method}")
    try:
        joined_s = braid.wait_until_in()
        table.add_row("all in the braid after", f"{joined_s:.1f} s")
        memory = resident_bytes(braid.child.pid) / count
        table.add_row("memory a broker, before use", f"{memory / 2**20:.1f} MiB")
        table.add_row("upkeep without subscriptions", _quiet_upkeep(braid, count))
        clients, expected, got = _use(braid, count)
        table.add_row("deliveries", f"{got:,} of {expected:,}")
        hops, arrivals = braid.metric("braidmq_braid_hops_sum"), braid.metric("braidmq_braid_hops_count")
        table.add_row("mean hops between brokers", f"{hops / arrivals:.2f}" if arrivals else "–")
        table.add_row(f"upkeep with {TOPICS:,} topics, tables being learnt", _shown(_upkeep(braid, count)))
        table.add_row(f"upkeep with {TOPICS:,} topics, once it is quiet", _quiet_upkeep(braid, count))
        table.add_row("memory a broker, in use", f"{resident_bytes(braid.child.pid) / count / 2**20:.1f} MiB")
        for one in clients:
            one.loop_stop()
            one.disconnect()
    finally:
        braid.close()
    console.print(table)
    return Ratio(f"{count} brokers in, seconds", joined_s, joined_s, joined_s, f"≤ {JOIN_S:.0f}", joined_s <= JOIN_S)


def _upkeep(braid: Braid, count: int) -> float:
    """Bytes a second that a broker sends and receives without any publication."""

    def sent() -> float:
        return braid.metric("braidmq_braid_link_bytes_total", 'kind="upkeep"')

    before, began_at = sent(), time.monotonic()
    time.sleep(WINDOW_S)
    return (sent() - before) / (time.monotonic() - began_at) / count


def _quiet_upkeep(braid: Braid, count: int) -> str:
    """Upkeep once it has stopped falling: tables are learnt quickly at first, and then only checked."""
    rates = [_upkeep(braid, count)]
    ends_at = time.monotonic() + QUIET_MAX_S
    while time.monotonic() < ends_at:
        rates.append(_upkeep(braid, count))
        if rates[-1] > STILL_FALLING * rates[-2]:
            return _shown(rates[-1])
    return f"{_shown(rates[-1])}, still falling"


def _shown(rate: float) -> str:
    return f"{rate:,.0f} bytes/s a broker, both directions"


def _use(braid: Braid, count: int) -> tuple[list[paho.Client], int, int]:
    """Zipf-distributed subscribers, and one publication to each topic from a broker anywhere."""
    chance = random.Random(1)
    got: list[str] = []
    clients = [_connected(port, lambda _c, _u, message: got.append(message.topic)) for port in braid.mqtt]
    wanted: list[tuple[int, str]] = []
    for rank in range(1, TOPICS + 1):
        audience = chance.sample(range(count), max(1, min(count, round(count / rank))))
        wanted += [(number, f"zipf/{rank}") for number in audience]
    expected = len(wanted)
    chance.shuffle(wanted)
    for number, topic in wanted:
        clients[number].subscribe(topic)
        time.sleep(PACE_S)
    time.sleep(10 * SETTLE_S)
    for pace_s in (PACE_S, 0.0):  # the first makes the topics known, the second is counted
        got.clear()
        for rank in range(1, TOPICS + 1):
            clients[rank % count].publish(f"zipf/{rank}", PAYLOAD)
            time.sleep(pace_s)
        ends_at = time.monotonic() + ARRIVE_S
        while len(got) < expected and time.monotonic() < ends_at:
            time.sleep(0.2)
    return clients, expected, len(got)


def main(
    rounds: Annotated[int, typer.Option(help="How often the pairs are measured.")] = 3,
    seconds: Annotated[int, typer.Option(help="How long each measurement takes.")] = 2,
    brokers: Annotated[int, typer.Option(help="How many brokers in the last part; 0 leaves it out.")] = 50,
    method: Annotated[str, typer.Option(help="How publications travel.")] = METHOD_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ratios as JSON.")] = False,
) -> None:
    """Braided brokers: throughput, latency, copies, and what many of them cost."""
    loader.build()
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        ratios = pairs(folder, method, rounds, seconds)
        with bridged(folder, 3, ring=True) as ports:
            loop = copies(ports, 5.0)
        braid = Braid(folder, 3, method)
        try:
            braid.wait_until_in()
            made = copies(braid.mqtt, 5.0)
        finally:
            braid.close()
        console.print(f"One publication in a ring of three: {made} arrives; with bridged Mosquittos {loop:,} in 5 s.")
        ratios.append(Ratio("copies of one publication", made, made, made, "1", made == 1))
        if brokers:
            shutil.rmtree(folder / "data", ignore_errors=True)
            ratios.append(many(folder, brokers, method))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(msgspec.json.encode(ratios).decode())
        return
    table = Table("figure", "measured", "range", "target", "", title="Targets")
    for one in ratios:
        mark = "[green]reached[/]" if one.is_reached else "[red]missed[/]"
        table.add_row(one.name, f"{one.value:.2f}", f"{one.low:.2f} to {one.high:.2f}", one.target, mark)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
