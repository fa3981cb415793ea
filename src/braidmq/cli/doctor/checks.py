"""What `braidmq doctor` looks at: each check tries the real thing, and says what it found and what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from braidmq.config.settings import Config, Listener

PYTHON_MIN: Final = (3, 11)
SPARK_VERSION: Final = (4, 3)
FILES_BESIDE_CLIENTS: Final = 128
"""What a broker has open besides its clients' connections: the store, the log, listeners, links, the admin port."""
FREE_BYTES_MIN: Final = 100 << 20
FREE_BYTES_GOOD: Final = 1 << 30
PROBE_TIMEOUT_S: Final = 2.0
EARLIEST_YEAR: Final = 2026
"""A clock before this program was written is wrong."""
CLOCK_UNSYNCHRONISED: Final = 5
"""What the kernel's adjtimex calls TIME_ERROR."""
MQTT_CONNECT: Final = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x05\x00\x00"
"""A client of MQTT 3.1.1 without a name: any MQTT server answers it, if only with a refusal."""
CONNACK: Final = 0x20


class CheckState(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to be done."""
    WARNING = "warning"
    """Works now, and may not later."""
    FIX = "fix"
    """Something will not work before this is done."""


@dataclass(frozen=True)
class CheckResult:
    check: str
    state: CheckState
    found: str
    fix: str = ""


def python() -> CheckResult:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return CheckResult("python", CheckState.FIX, found, f"Install Python {wanted} or later, and BraidMQ in it")
    return CheckResult("python", CheckState.OK, found)


def java(*, needed: bool) -> CheckResult:
    """`needed` is whether Spark is there, or asked for."""
    from braidmq.pipeline.launch.java import JavaMissing, find

    try:
        found = find()
    except JavaMissing as error:
        if not needed:
            return CheckResult("java", CheckState.NOTE, "none; only Spark needs it")
        return CheckResult("java", CheckState.FIX, error.text, error.hint)
    return CheckResult("java", CheckState.OK, f"Java {found.version} from {found.origin}")


def spark(*, needed: bool) -> CheckResult:
    """The packages, by what is installed; whether they run is `spark_query`."""
    from braidmq.pipeline.errors import INSTALL

    versions: dict[str, str] = {}
    missing = []
    for name in ("pyspark", "pyarrow", "pandas", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if "pyspark" in missing:
        if not needed:
            return CheckResult(
                "spark", CheckState.NOTE, "not installed; the pipeline needs it", f"For the pipeline: {INSTALL}"
            )
        return CheckResult("spark", CheckState.FIX, "not installed", INSTALL)
    if missing:
        return CheckResult("spark", CheckState.FIX, f"pyspark is there without {', '.join(missing)}", INSTALL)
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    if tuple(map(int, versions["pyspark"].split(".")[:2])) != SPARK_VERSION:
        return CheckResult("spark", CheckState.FIX, f"{told}: another version than was tested", INSTALL)
    return CheckResult("spark", CheckState.OK, told)


def spark_query(master: str | None) -> CheckResult:
    """Starts Spark, and has its Python workers read a table. Its Java leaves its classes for later starts."""
    from braidmq.pipeline.errors import PipelineError
    from braidmq.pipeline.session import short_session

    began = time.monotonic()
    try:
        with short_session("braidmq doctor", master) as made:
            started_s = time.monotonic() - began
            rows = made.range(0, 1000, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
            took_s = time.monotonic() - began
    except PipelineError as error:
        return CheckResult("spark query", CheckState.FIX, error.text, error.hint)
    except Exception as error:  # whatever a worker or Java throws
        words = str(error).strip().split("\n", 1)[0][:500]
        return CheckResult(
            "spark query", CheckState.FIX, words, "Workers need the same Python as here, with pyarrow and pandas"
        )
    if rows != 1000:
        return CheckResult("spark query", CheckState.FIX, f"{rows} rows came back of 1000", "Install Spark again")
    return CheckResult(
        "spark query", CheckState.OK, f"started in {started_s:.1f} s, answered in {took_s - started_s:.1f} s"
    )


def ports(config: Config) -> Iterator[CheckResult]:
    """Every address that the configuration wants to listen on."""
    for listener in config.listeners:
        if listener.kind == "unix":
            yield _unix_path(listener)
        else:
            yield _port(listener.name, listener.host, listener.port)
    if config.admin is not None:
        yield _port("admin", config.admin.host, config.admin.port)
    if config.braid is not None:
        host, _, port = config.braid.listen.rpartition(":")
        yield _port("braid", host.strip("[]"), int(port))


def _port(name: str, host: str, port: int) -> CheckResult:
    check = f"port {name}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return CheckResult(
            check, CheckState.FIX, f"the host {host} is not known here", "Write an address of this machine"
        )
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            return _port_trouble(check, host, port, error)
    return CheckResult(check, CheckState.OK, f"{host}:{port} is free" if port else f"{host}: any free port")


def _port_trouble(check: str, host: str, port: int, error: OSError) -> CheckResult:
    address = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        if _speaks_mqtt(host, port):
            fix = "If that is not your broker, end it or choose another port"
            return CheckResult(check, CheckState.NOTE, f"an MQTT broker answers on {address}", fix)
        return CheckResult(
            check, CheckState.FIX, f"another program has {address}", f"End it (`ss -ltnp 'sport = :{port}'` names it)"
        )
    if error.errno == errno.EACCES:
        fix = "Choose a port above 1023, or give Python the right (`setcap cap_net_bind_service=+ep`)"
        return CheckResult(check, CheckState.FIX, f"only an administrator may listen on {address}", fix)
    if error.errno == errno.EADDRNOTAVAIL:
        return CheckResult(
            check, CheckState.FIX, f"{host} is no address of this machine", "Write 127.0.0.1, 0.0.0.0 or its own"
        )
    return CheckResult(check, CheckState.FIX, f"{address}: {error.strerror}", "Choose another address or port")


def _speaks_mqtt(host: str, port: int) -> bool:
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - bound to all is reached on loopback
    try:
        with socket.create_connection((local, port), PROBE_TIMEOUT_S) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            probe.sendall(MQTT_CONNECT)
            answer = probe.recv(4)
    except OSError:
        return False
    return answer[:1] == bytes([CONNACK])


def _unix_path(listener: Listener) -> CheckResult:
    check, path = f"port {listener.name}", Path(listener.path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            probe.connect(str(path))
        return CheckResult(check, CheckState.NOTE, f"a program listens on {path}", "If that is not your broker, end it")
    except OSError:
        pass
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        return CheckResult(check, CheckState.FIX, f"{path} is no socket", "Choose another path, or move that file away")
    if not os.access(path.parent, os.W_OK):
        return CheckResult(
            check,
            CheckState.FIX,
            f"no socket can be made in {path.parent}",
            "Make that folder, with the right to write",
        )
    return CheckResult(check, CheckState.OK, f"{path} can be made")


def files(config: Config) -> CheckResult:
    """Each connection is an open file, so the limit of open files bounds the number of clients."""
    from braidmq.broker.limits import Limits

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.limits.connections_max
    needed = wanted + FILES_BESIDE_CLIENTS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        room = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} open files"
        return CheckResult("files", CheckState.OK, f"{room}, for {wanted:,} connections")
    clients = max(soft - FILES_BESIDE_CLIENTS, 0)
    found = f"{soft:,} open files: room for {clients:,} connections of {wanted:,} (limits.connections_max)"
    raised = hard == resource.RLIM_INFINITY or hard >= needed
    how = f"`ulimit -n {needed}`" if raised else f"LimitNOFILE={needed} in the service, or /etc/security/limits.conf"
    is_default = wanted == Limits().connections_max
    state = CheckState.WARNING if is_default and clients else CheckState.FIX
    return CheckResult("files", state, found, f"For all of them: {how}")


def disk(config: Config) -> CheckResult:
    folder = Path(config.data).absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        return CheckResult("disk", CheckState.FIX, f"{nearest} is no folder", "Choose another one with --data")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return CheckResult("disk", CheckState.FIX, f"{nearest} cannot be written", "Choose another one with --data")
    free = shutil.disk_usage(nearest).free
    found = f"{free / 1e9:.1f} GB free for {config.data}"
    if free < FREE_BYTES_MIN:
        return CheckResult("disk", CheckState.FIX, found, "Free some, or choose a folder on another disk with --data")
    if free < FREE_BYTES_GOOD:
        return CheckResult(
            "disk", CheckState.WARNING, found, "Bound the store and the log, or choose another disk with --data"
        )
    return CheckResult("disk", CheckState.OK, found)


def clock() -> CheckResult:
    """Times of several sites are compared: in windows, retention, tokens and certificates."""
    now = time.gmtime()
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
    if now.tm_year < EARLIEST_YEAR:
        return CheckResult("clock", CheckState.FIX, f"{found} is in the past", "Set the clock, and start NTP")
    adjust = getattr(ctypes.CDLL(None), "adjtimex", None)  # Linux alone has it
    if adjust is not None and adjust(ctypes.create_string_buffer(512)) == CLOCK_UNSYNCHRONISED:
        fix = "Start NTP (`timedatectl set-ntp true`): sites compare their times"
        return CheckResult("clock", CheckState.WARNING, f"{found}, not synchronised", fix)
    return CheckResult("clock", CheckState.OK, found)
