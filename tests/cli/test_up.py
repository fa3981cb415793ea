"""`up`: what it says when it is ready, and why it does not start."""

from __future__ import annotations

import shlex
import signal
import subprocess
from pathlib import Path

from tests.cli.commands import COMMAND, TIMEOUT_S, braidmq, environment, in_process
from tests.cli.mqtt import Sub
from tests.conftest import Broker

# The broker


def test_up_says_what_to_try_and_it_works(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "up", "--port", "0", "--data", str(tmp_path / "data"), "--admin-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment({"BRAIDMQ_PASSWORD": "p:w@/"}),  # it is for clients, and no key of the configuration
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip() for _ in range(7)]
        assert lines[0] == "BraidMQ is ready:"
        assert lines[1].startswith("mqtt://127.0.0.1:")
        assert lines[2].startswith("http://127.0.0.1:")
        listen, speak = shlex.split(lines[4]), shlex.split(lines[5])
        sub = Sub(*listen[listen.index("sub") + 1 :], "-C", 1, "--format", "{topic}: {payload}")
        done = subprocess.run(speak, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)  # as it was told
        assert done.returncode == 0
        assert sub.end() == (0, "hello/world: Hi there\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_up_lists_all_that_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "braidmq.toml"
    config.write_text('nam = "x"\n[limits]\nreceive_max = 0\n')
    done = in_process(
        "up", "--config", config, "--set", "log.level=loud", "--host", "0.0.0.0", "--data", tmp_path / "d"
    )
    assert done.returncode == 2
    for key in ("nam", "limits.receive_max", "log.level"):
        assert key in done.stderr
    assert in_process("up", "--set", "nothing").returncode == 2
    missing = in_process("up", env={"BRAIDMQ_CONFIG": str(tmp_path / "missing.toml")})
    assert missing.returncode == 2
    assert "missing.toml" in missing.stderr


def test_up_that_cannot_listen_or_store_is_exit_code_3(broker: Broker, tmp_path: Path) -> None:
    busy = braidmq("up", "--port", broker.port, "--data", tmp_path / "data")
    assert busy.returncode == 3
    assert str(broker.port) in busy.stderr
    taken = braidmq("up", "--port", 0, "--data", broker.data)
    assert taken.returncode == 3
    assert str(broker.data) in taken.stderr
    folder = tmp_path / "closed"
    (folder / "data").mkdir(parents=True)
    for database in broker.data.iterdir():
        (folder / "data" / database.name).write_bytes(b"not a database" * 1000)
    damaged = braidmq("up", "--port", 0, "--data", folder / "data")
    assert damaged.returncode == 3
    assert "Traceback" not in busy.stderr + damaged.stderr + taken.stderr
