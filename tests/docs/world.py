"""A machine of its own for each page, with the ports and host names of the page, whatever else runs.

It is made of Linux namespaces: user, network, mount and process. What a page leaves running ends with them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

COMMAND: Final = ["unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
HOSTS: Final = {"127.0.0.1": ["localhost", "edge1"], "127.0.0.2": ["edge2"]}
"""The machines of the pages are addresses of loopback."""
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
MS_BIND: Final = 4096


def is_possible() -> bool:
    """Whether this system has such namespaces, and lets us use them."""
    try:
        return subprocess.run([*COMMAND, "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


def enter(folder: Path) -> None:
    """From within the namespaces: loopback is up, hosts have their names, and `braidmq` is what `make run` set up.

    `folder` becomes the working folder; it has `.venv` and a Makefile, as a clone of the project has.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
    hosts = folder / ".hosts"
    hosts.write_text("".join(f"{address} {' '.join(names)}\n" for address, names in HOSTS.items()))
    if ctypes.CDLL(None, use_errno=True).mount(bytes(hosts), b"/etc/hosts", None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), "cannot mount /etc/hosts")
    os.chdir(folder)
    root = Path(__file__).parents[2]
    Path(".venv").symlink_to(sys.prefix)
    for name in ("Makefile", "pyproject.toml", "src", "tests", "bench"):
        Path(name).symlink_to(root / name)
    programs = folder / ".bin"
    programs.mkdir()
    # `make` finds everything set up, and runs before `braidmq` is on the path, as the first page says.
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "braidmq").exists()]
    make = programs / "make"
    make.write_text(
        f'#!/bin/sh\nPATH={os.pathsep.join(path)} exec {shutil.which("make")} --old-file=.venv/.ready "$@"\n'
    )
    make.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(programs), str(Path(sys.prefix) / "bin"), *path])
