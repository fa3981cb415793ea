"""Listening sockets: opened, or refused with a clear error; closed without leaving anything behind."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any

BACKLOG_MAX = 4096
"""Connections that wait in the kernel to be accepted; the system may allow fewer (net.core.somaxconn)."""

UNIX_SOCKET_MODE = 0o660
"""The owner and the group may connect, others may not."""

PORT_ATTEMPTS_MAX = 8
"""Free ports that are tried until one is free on all addresses of a host."""

LISTENER_PORT = "--port (of the first listener) or `port` of the listener in the configuration"
ADMIN_PORT = "--admin-port or `admin.port` in the configuration"
"""What to change when a port is in use."""

_PORT_TAKEN = "the port is in use; stop the other program, or choose another port"
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(OSError):
    """A listener could not be opened; the text names it, its address, the cause and what to do."""

    def __init__(self, name: str, address: str, cause: str, *, is_taken: bool = False) -> None:
        super().__init__(f"listener {name!r} cannot listen on {address}: {cause}")
        self.is_taken = is_taken
        """Whether another program has the port."""


def host_and_port(host: str, port: int) -> str:
    """The address as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind_tcp(name: str, host: str, port: int, change: str) -> list[socket.socket]:
    """Sockets that listen on every address of the host; port 0 takes a free one, the same for all of them.

    `change` is the option to choose another port with, for the error.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(name, host_and_port(host, port), f"the host name is not known ({error.strerror})") from None
    addresses = [(family, address) for family, _, _, _, address in dict.fromkeys(found)]
    for attempts_left in reversed(range(1 if port else PORT_ATTEMPTS_MAX)):
        try:
            return _listen_on_all(addresses, port)
        except OSError as error:
            # A port that was free on the first address may be in use on the next: then another one is tried.
            if error.errno != errno.EADDRINUSE or not attempts_left:
                is_taken = error.errno == errno.EADDRINUSE
                cause = f"{_PORT_TAKEN} with {change}" if is_taken else _bind_cause(error)
                raise ListenError(name, host_and_port(host, port), cause, is_taken=is_taken) from None
    raise AssertionError("unreachable")


def bind_unix(name: str, path: str) -> socket.socket:
    """A socket that listens on the path; one that a dead process left there is replaced."""
    _remove_stale(name, path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error([listening]):
        try:
            listening.setblocking(False)
            listening.bind(path)
            # Nobody can connect before listen(), so there is no moment with other rights.
            os.chmod(path, UNIX_SOCKET_MODE)
            listening.listen(BACKLOG_MAX)
        except OSError as error:
            raise ListenError(name, path, _bind_cause(error)) from None
    return listening


def unix_identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the socket's file: tells whether it is still the one that was bound."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def unix_peer(connected: socket.socket) -> str:
    """The user and process at the other end of a Unix socket, where the system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return "unix"
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return f"unix:uid={uid},pid={pid}"


def end_of_stream(connected: socket.socket) -> None:
    """Tells the other end that nothing more will come; it may be gone already."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_WR)


def _listen_on_all(addresses: Sequence[tuple[int, tuple[Any, ...]]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    unavailable: OSError | None = None
    with _closed_on_error(sockets):
        for family, (host, _, *rest) in addresses:
            try:
                sockets.append(_listen_tcp(family, (host, port, *rest)))
            except OSError as error:
                # "localhost" is often also ::1 on a machine without IPv6: the other address will do.
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                unavailable = error
            else:
                port = sockets[0].getsockname()[1]
        if unavailable is not None and not sockets:
            raise unavailable
    return sockets


def _listen_tcp(family: int, address: tuple[str | int, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    with _closed_on_error([listening]):
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit both, so no connection pays a system call for them.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            # "::" is all IPv6 addresses, so that a listener on 0.0.0.0 can have the same port beside it.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG_MAX)
    return listening


def _remove_stale(name: str, path: str) -> None:
    """Clears the path if no process listens there; anything that is not a socket is left alone."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(name, path, _bind_cause(error)) from None
    if not stat.S_ISSOCK(mode):
        raise ListenError(name, path, "there is a file that is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:
            if not isinstance(error, TimeoutError | BlockingIOError):
                raise ListenError(name, path, _bind_cause(error)) from None
    raise ListenError(name, path, "another process listens there; stop it or choose another path")


def _bind_cause(error: OSError) -> str:
    words = error.strerror or str(error)
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return f"{words}; ports below 1024 need privileges, and a socket's folder must be writable"
        case errno.EADDRNOTAVAIL:
            return "no interface of this machine has that address"
        case errno.ENOENT:
            return "the folder of the socket does not exist; create it"
        case _:
            return words


@contextlib.contextmanager
def _closed_on_error(sockets: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
