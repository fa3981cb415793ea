"""`braidmq process`: what it shows of brokers that run, and processors tried out from the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import COMMAND, environment, in_process
from tests.patience import PATIENCE_S
from tests.processors.site import ECHO, Site
from tests.raw import opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker


@pytest.fixture
def site(start_broker: StartBroker, tmp_path: Path) -> Site:
    return Site(start_broker, tmp_path, more='[log]\ntopics = ["in/#"]\n')


def ask(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return in_process("process", *words, "--admin", site.broker.address("http"))


def test_list_where_and_move(site: Site) -> None:
    pytest.importorskip("pyarrow", reason="a log needs the extra `log`")
    done = ask(site, "where", "in/1")
    assert done.returncode == 1
    assert "no processor has had a message of in/1" in done.stderr
    with opened(site.broker, "device") as device:
        device.publish("in/1", b"a", 1)
        device.publish("in/1", b"\xff", 1)
    site.wait_for(processed=2)

    done = ask(site, "list")
    assert done.returncode == 0, done.stderr
    for text in ("echo", "in/+", "1 edge", "running", "2", "1"):
        assert text in done.stdout
    [listed] = json.loads(ask(site, "list", "--json").stdout)["processors"]
    assert (listed["name"], listed["processed"], listed["errors"]) == ("echo", 2, 1)

    assert "at the edge, for 1 publisher; offsets: from 0 edge" in ask(site, "where", "in/1").stdout
    assert "on Spark; offsets: from 0 edge, from 2 spark" in ask(site, "move", "echo", "in/1", "spark").stdout
    assert json.loads(ask(site, "where", "in/1", "--json").stdout)["place"] == "spark"
    assert "up to offset 2, and then at the edge" in ask(site, "move", "echo", "in/1", "edge").stdout
    done = ask(site, "move", "nobody", "in/1", "edge")
    assert done.returncode == 1
    assert "there is no processor nobody here, but: echo" in done.stderr
    assert ask(site, "move", "echo", "in/+", "spark").returncode == 2


def test_a_processor_that_does_not_run_is_told(site: Site) -> None:
    site.file.write_text("x = 1\n")
    site.reload()
    site.wait_for(state="refused")
    done = ask(site, "list")
    assert done.returncode == 1
    assert f"echo: {site.file} has no processor" in done.stdout
    assert "not running: echo" in done.stderr


def test_there_are_none(start_broker: StartBroker) -> None:
    broker = start_broker("[admin]\nport = 0\n")
    done = in_process("process", "list", "--admin", broker.address("http"))
    assert done.returncode == 0
    assert "No processors." in done.stdout


def test_run_over_a_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    file = tmp_path / "try.py"
    file.write_text(ECHO)
    arguments = ["process", "run", str(file), "-p", str(broker.port), "-C", "3", "--json", "--publish"]
    with opened(broker, "device") as device:
        device.subscribe("out")
        trial = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
        )
        wait_until(lambda: device.publish("in/1", b"quiet", 1) == 0, "somebody subscribes")
        device.publish("in/1", b"\xff", 1)
        device.publish("in/1", b"a", 1)
        assert json.loads(device.next_message().payload) == ["quiet", "\ufffd", "a"]
    out, err = trial.communicate(timeout=PATIENCE_S)
    assert trial.returncode == 1
    assert json.loads(out)["payload"] == '["quiet","\ufffd","a"]'
    assert "payload: the payload is not UTF-8 text" in err
    assert "3 messages, 1 notification, 1 failed." in err


def test_run_over_a_log(site: Site) -> None:
    pytest.importorskip("pyarrow", reason="a log needs the extra `log`")
    with opened(site.broker, "device") as device:
        for number in range(5):
            device.publish(f"in/{number % 2}", str(number).encode(), 1)
    for where in (str(site.broker.data / "log"), site.broker.address("http")):
        wait_until(lambda at=where: _over(site, at).stderr.startswith("5 messages"), "five rows")  # type: ignore[misc]
        found = {line.rpartition("  ")[2] for line in _over(site, where).stdout.splitlines()}
        assert found == {'["0"]', '["0","2"]', '["0","2","4"]', '["1"]', '["1","3"]'}


def _over(site: Site, where: str) -> subprocess.CompletedProcess[str]:
    return in_process("process", "run", site.file, "--log", where)


def test_what_cannot_be_run(tmp_path: Path) -> None:
    file = tmp_path / "try.py"
    file.write_text(ECHO)
    for arguments, code, words in (
        (["none.py"], 2, "there is no file none.py"),
        ([file, "--topic", "#"], 2, "go round for ever"),
        ([file, "--log", "x", "--publish"], 2, "--publish with --log"),
        ([file, "--log", str(tmp_path / "nothing")], 3, "no log"),
        ([file, "--url", "mqtt://127.0.0.1:1"], 3, "nothing listens"),
    ):
        done = in_process("process", "run", *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
