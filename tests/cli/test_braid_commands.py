"""What people see of a braid: three sites in one process, asked by real commands over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import paho.mqtt.publish as paho_publish
import pytest

from braidmq.cli.up import read_sites
from braidmq.config.load import load
from tests.cli.braids import TOKEN, Braid, Subscriber
from tests.cli.commands import COMMAND, environment, in_process
from tests.conftest import StartBroker
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S
OVERRIDES = {"listeners[0].port": None, "admin.port": None, "data": None}


@pytest.fixture(scope="module")
def braid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Braid]:
    made = Braid(tmp_path_factory.mktemp("braid"))
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.communicate()


@pytest.fixture
def subscriber(braid: Braid) -> Iterator[Subscriber]:
    """Wants `tide/#` at the third site."""
    made = Subscriber(braid.ports[2], "tide/#")
    yield made
    made.close()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < ends_at, what
        time.sleep(0.05)


def test_the_sites_are_announced_each_with_its_ports_and_folder(braid: Braid) -> None:
    assert braid.ready["event"] == "ready"
    assert [site["name"] for site in braid.ready["sites"]] == ["site1", "site2", "site3"]
    assert braid.ready["addresses"] == [one for site in braid.ready["sites"] for one in site["addresses"]]
    for number, name in enumerate(("site1", "site2", "site3")):
        told = json.loads((braid.data / name / "admin.json").read_text())
        assert told == {"name": name, "url": braid.url(number), "pid": braid.process.pid}
        assert (braid.data / name / "journal").is_dir()
        assert TOKEN not in (braid.data / name / "admin.json").read_text()


def test_what_is_published_at_one_site_arrives_at_another(braid: Braid, subscriber: Subscriber) -> None:
    for qos in (0, 1, 2):
        paho_publish.single(f"tide/{qos}", f"to all, {qos}", qos, hostname="127.0.0.1", port=braid.ports[0])
        assert subscriber.got.get(timeout=TIMEOUT_S) == (f"tide/{qos}", f"to all, {qos}".encode())
    assert subscriber.got.empty()


@pytest.mark.parametrize("version", ["5", "311"])
def test_a_message_stays_inside_a_cluster(braid: Braid, subscriber: Subscriber, version: str) -> None:
    def publish(text: str, scope: str) -> subprocess.CompletedProcess[str]:
        where = ("-p", str(braid.ports[0]), "-V", version)
        return in_process("pub", *where, "-q", "1", "tide/scope", text, "--scope", scope)

    for text, scope in (("not here", "site2"), ("nor here", "."), ("here", "site3")):
        done = publish(text, scope)
        assert done.returncode == 0, done.stderr
    assert subscriber.got.get(timeout=TIMEOUT_S) == ("tide/scope", b"here")
    assert subscriber.got.empty()
    done = publish("nowhere", "site9")
    assert (done.returncode == 1) == (version == "5")
    assert ("no broker of the braid is in the cluster 'site9'" in done.stderr) == (version == "5")


def test_a_script_is_told_by_the_first_message_whether_anyone_listens(braid: Braid, subscriber: Subscriber) -> None:
    """The example of `braidmq pub --help`; on a machine that is too busy to find out in time it is told nothing."""
    numbers = count()

    def first_reason(topic: str) -> int:
        done = in_process("pub", "-p", braid.ports[0], f"{topic}/{next(numbers)}", "test", "-q", "1", "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["reason_code"])

    wait_until(lambda: first_reason("alarm") == 16, "nobody is said not to listen")
    assert first_reason("tide") == 0


def test_the_ring_names_all_brokers_in_order(braid: Braid) -> None:
    done = braid.ask("ring", "--json")
    assert done.returncode == 0, done.stderr
    brokers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [broker["name"] for broker in brokers] == ["site1", "site2", "site3"]
    assert [broker["cluster"] for broker in brokers] == ["site1", "site2", "site3"]
    assert all(broker["is_healthy"] and broker["is_in"] and broker["links"] == 2 for broker in brokers)
    assert brokers[0]["right"] == "site2"
    assert brokers[1]["left"] == "site1"
    from_another = in_process("ring", "--admin", braid.url(2), "--token", TOKEN, "--color", "always")
    assert from_another.returncode == 0
    assert "3 brokers" in from_another.stdout
    assert "healthy" in from_another.stdout
    assert "\x1b[" in from_another.stdout


def test_topics_tell_what_is_published_and_wanted(braid: Braid, subscriber: Subscriber) -> None:
    for topic in ("tide/high", "nobody/cares"):
        paho_publish.single(topic, "5", 1, hostname="127.0.0.1", port=braid.ports[0])
    subscriber.got.get(timeout=TIMEOUT_S)

    def published(*words: str) -> dict[str, list[str]]:
        told = json.loads(braid.ask("topics", "--json", *words).stdout.splitlines()[0])
        assert told["broker"] == "site1"
        return {one["topic"]: one["wanted"] for one in told["published"]}

    wait_until(lambda: published().get("nobody/cares") == [], "the topic that nobody wants is not suspended")
    assert published("tide/high") == {"tide/high": ["tide/#"]}
    ((topic, wanted),) = published("-n", "1").items()
    assert published()[topic] == wanted
    at_third = json.loads(braid.ask("topics", "--json").stdout.splitlines()[2])
    assert at_third["interest"] == [{"filter": "tide/#", "stands": True, "is_effective": True}]
    assert at_third["covers"]["wants"] == ["tide/#"]
    assert at_third["covers"]["watchers"] == 1
    shown = braid.ask("topics").stdout
    assert "suspended" in shown
    assert "open" in shown
    assert "stands" in shown
    assert "by which brokers meet" in shown
    wrong = braid.ask("topics", "a/#/b")
    assert wrong.returncode == 1
    assert "# before the last level" in wrong.stderr


def test_demand_names_who_wants_a_topic(braid: Braid, subscriber: Subscriber) -> None:
    second = Subscriber(braid.ports[1], "tide/high")
    try:
        answer = braid.json("demand", "tide/high")
    finally:
        second.close()
    assert answer["is_complete"]
    assert [(one["name"], one["filters"]) for one in answer["brokers"]] == [
        ("site2", ["tide/high"]),
        ("site3", ["tide/#"]),
    ]
    assert braid.json("demand", "nobody/wants/this")["brokers"] == []
    assert "Nobody wants" in braid.ask("demand", "nobody/wants/this").stdout
    assert "site3" in braid.ask("demand", "tide/low").stdout
    own = braid.ask("demand", "$SYS/broker/uptime")
    assert own.returncode == 1
    assert "not passed on" in own.stderr
    assert braid.ask("demand", "tide/#").returncode == 2


@pytest.mark.parametrize("qos", [0, 1])
def test_a_trace_shows_the_way_and_no_client_gets_it(
    braid: Braid, subscriber: Subscriber, tmp_path: Path, qos: int
) -> None:
    picture = tmp_path / "way.svg"
    answer = braid.json("trace", "tide/high", "-q", str(qos), "--svg", str(picture))
    assert (answer["from"], answer["filters"], answer["receivers"]) == ("site1", ["tide/high"], 1)
    (hop,) = answer["hops"]
    assert (hop["from"], hop["to"], hop["hop"], hop["receives"]) == ("site1", "site3", 1, True)
    assert 0 <= hop["at_ms"] < TIMEOUT_S * 1000
    svg = ET.parse(picture).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"site1", "site3", "tide/high from site1 (covers)"} <= texts

    shown = braid.ask("trace", "tide/high")
    assert shown.returncode == 0
    assert "└── site3 (site3)  hop 1" in shown.stdout
    assert "receives" in shown.stdout
    paho_publish.single("tide/high", "real", 1, hostname="127.0.0.1", port=braid.ports[0])
    assert subscriber.got.get(timeout=TIMEOUT_S) == ("tide/high", b"real")


def test_a_trace_of_what_nobody_wants_stays(braid: Braid, tmp_path: Path) -> None:
    answer = braid.json("trace", "nobody/here")
    assert (answer["hops"], answer["filters"], answer["receivers"]) == ([], [], 0)
    done = braid.ask("trace", "nobody/here", "--svg", str(tmp_path / "way.svg"))
    assert done.returncode == 1
    assert "it stays at site1" in done.stdout
    assert "nothing to draw" in done.stderr


def test_groups_are_shown_with_who_gets_the_next_message(braid: Braid) -> None:
    group = "$share/workers/errands/+"
    worker = Subscriber(braid.ports[1], group)
    try:
        paho_publish.single("errands/1", "go", 1, hostname="127.0.0.1", port=braid.ports[0])
        worker.got.get(timeout=TIMEOUT_S)
        (choice,) = braid.json("trace", "errands/1", "-q", "1")["groups"]
        shown = braid.ask("trace", "errands/1").stdout
        told = json.loads(braid.ask("topics", "errands/#", "--json").stdout.splitlines()[0])
        table = braid.ask("topics", "errands/#").stdout
        wanting = braid.json("demand", "errands/1")["brokers"]
    finally:
        worker.close()
    assert (choice["group"], choice["broker"], choice["waiting"]) == (group, "site2", 0)
    assert choice["member"]
    assert "of the brokers whose members have room it is the nearest" in choice["why"]
    assert "receives" in shown
    assert "Nobody wants" not in shown
    assert [one["groups"] for one in told["published"]] == [[group]]
    assert [(one["group"], one["brokers"]) for one in told["groups"]] == [(group, ["site2"])]
    assert "members at" in table
    assert "suspended" not in table
    assert [(one["name"], one["filters"]) for one in wanting] == [("site2", [group])]


def test_the_broker_describes_its_part(braid: Braid, subscriber: Subscriber) -> None:
    paho_publish.single("tide/kept", "5", 1, hostname="127.0.0.1", port=braid.ports[0])
    subscriber.got.get(timeout=TIMEOUT_S)
    told = json.loads(braid.get(0, "/braid"))
    assert (told["name"], told["cluster"], told["method"], told["is_in"]) == ("site1", "site1", "covers", True)
    assert told["right"]["name"] == "site2"
    assert told["keys"]["home"] == 2
    assert told["keys"]["publisher"] > 0
    assert 0 < len(told["covers"]["publications"]) <= 64
    assert told["covers"]["subscribers"] >= 1
    assert told["covers"]["wants_known"] > 0
    assert told["history"]["head"] > 0
    assert told["history"]["bytes"] > 0
    assert len(told["links"]) == len(told["introducers"]) == 2
    assert all(link["bytes_in"] > link["publication_bytes_in"] for link in told["links"])
    at_third = json.loads(braid.get(2, "/braid"))
    assert [cursor["origin"].split("#")[0] for cursor in at_third["cursors"]] == ["site1"]
    assert at_third["unproven"] == at_third["inlets"]["given_up"] == 0


def test_metrics_tell_publications_from_upkeep(braid: Braid, subscriber: Subscriber) -> None:
    def publications(number: int, direction: str) -> tuple[float, float]:
        samples = braid.samples(number)
        return (
            samples["braidmq_braid_link_messages_total", direction, "publications"],
            samples["braidmq_braid_link_bytes_total", direction, "publications"],
        )

    (out, out_bytes), (received, _) = publications(0, "out"), publications(2, "in")
    hops = braid.samples(2)["braidmq_braid_hops_count",]
    for _ in range(5):
        paho_publish.single("tide/high", "x" * 1000, 0, hostname="127.0.0.1", port=braid.ports[0])
        subscriber.got.get(timeout=TIMEOUT_S)
    assert publications(0, "out")[0] == out + 5
    assert out_bytes + 5_000 < publications(0, "out")[1] < out_bytes + 7_000
    assert publications(2, "in")[0] == received + 5
    samples = braid.samples(2)
    assert samples["braidmq_braid_hops_count",] == hops + 5
    assert samples["braidmq_braid_in",] == 1
    assert samples["braidmq_braid_links",] == 2
    assert samples["braidmq_braid_keys", "subscriber"] >= 1
    assert samples["braidmq_braid_link_bytes_total", "in", "upkeep"] > 0
    for name in (
        "topics_suspended",
        "history_messages",
        "history_bytes",
        "ring_repairs_total",
        "routing_entries",
        "publications_duplicate_total",
    ):
        assert (f"braidmq_braid_{name}",) in samples
    quiet = publications(0, "out")
    paho_publish.single("nobody/at/all", "x", 0, hostname="127.0.0.1", port=braid.ports[0])
    paho_publish.single("nobody/at/all", "x", 0, hostname="127.0.0.1", port=braid.ports[0])
    assert publications(0, "out") == quiet


@pytest.mark.parametrize("command", [["ring"], ["topics"], ["demand", "t"], ["trace", "t"]])
def test_errors_are_told_without_a_traceback(braid: Braid, command: list[str], tmp_path: Path) -> None:
    wrong = braid.ask(*command, token="a guess")
    assert wrong.returncode == 1
    assert "right token" in wrong.stderr
    assert "--token" in wrong.stderr
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = in_process(*command, "--admin", f"http://127.0.0.1:{port}")
    assert nobody.returncode == 3
    assert "no admin port at" in nobody.stderr
    assert "--admin-port" in nobody.stderr
    empty = in_process(*command, "--data", tmp_path)
    assert empty.returncode == 3
    assert "no broker that runs" in empty.stderr
    assert in_process(*command, "--admin", "ftp://nowhere").returncode == 2
    assert in_process(*command, "--data", tmp_path, "--admin", "http://x").returncode == 2
    helped = in_process(*command[:1], "--help")
    assert helped.returncode == 0
    assert "Examples" in helped.stdout
    for done in (wrong, nobody, empty):
        assert "Traceback" not in done.stderr


def test_without_the_token_nothing_is_told(braid: Braid) -> None:
    for path in ("/braid", "/braid/ring", "/braid/topics", "/braid/demand?topic=t", "/braid/trace?topic=t"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(braid.url(0) + path, timeout=TIMEOUT_S)
        assert refused.value.code == 401


def test_a_broker_in_no_braid_says_so(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=["--admin-port", "0"])
    done = in_process("ring", "--admin", broker.address("http"))
    assert done.returncode == 1
    assert "in no braid" in done.stderr


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "up", "--brokers", "2", "--port", str(port - 1), "--admin-port", "0", "--data", tmp_path / "d"],
            capture_output=True,
            env=environment(),
            timeout=TIMEOUT_S,
        )
    text = done.stderr.decode()
    assert done.returncode == 3
    assert "Traceback" not in text
    assert "cannot listen" in text
    assert f":{port}" in text or f":{port - 1}" in text
    assert not (tmp_path / "d").exists()
    assert "--port 2883 --data data2" in text
    assert "make run PORT=2883 DATA=data2" in text


@pytest.mark.parametrize(
    ("words", "flag", "key"),
    [
        (["--port"], "--port", "`port`"),
        (["--port", "0", "--admin-port"], "--admin-port", "`admin.port`"),
        (["--brokers", "2", "--port", "0", "--admin-port"], "--admin-port", "`admin.port`"),
        (["--port", "0", "--braid"], "--braid", "`braid.listen`"),
    ],
)
def test_a_port_that_is_taken_names_what_to_change(words: list[str], flag: str, key: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        where = f"127.0.0.1:{port}" if words[-1] == "--braid" else port
        done = in_process("up", *words, where, "--data", tmp_path / "d")
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert flag in done.stderr
    assert key in done.stderr


def test_ports_and_folders_count_up(tmp_path: Path) -> None:
    def read(overrides: dict[str, object], **settings: object) -> list[Any]:
        return read_sites(3, partial(load, None, {}), OVERRIDES | overrides, settings)

    sites = read({"listeners[0].port": 4000, "data": str(tmp_path)})
    assert [site.listeners[0].port for site in sites] == [4000, 4001, 4002]
    assert [site.admin.port for site in sites] == [12000, 12001, 12002]
    assert [site.data for site in sites] == [str(tmp_path / f"site{number}") for number in (1, 2, 3)]
    assert [(site.braid.name, site.braid.cluster) for site in sites] == [(f"site{n}", f"site{n}") for n in (1, 2, 3)]
    assert [site.listeners[0].port for site in read({})] == [1883, 1884, 1885]
    assert [site.admin.port for site in read({})] == [9883, 9884, 9885]
    assert [site.admin.port for site in read({"admin.port": 0})] == [0, 0, 0]
    assert [site.admin.port for site in read({"admin.port": 7000, "listeners[0].port": 4000})] == [7000, 7001, 7002]
    assert [site.admin.port for site in read({"listeners[0].port": 0})] == [0, 0, 0]
    assert [site.admin.port for site in read({"listeners[0].port": 60000})] == [52000, 52001, 52002]
    with_token = read({"listeners[0].port": 4000}, **{"admin.token": "between-us"})
    assert [(site.admin.port, site.admin.token) for site in with_token] == [(12000 + n, "between-us") for n in range(3)]
    for words in (["--cluster", "c"], ["--braid", "127.0.0.1:0"], ["--port", "65535", "--data", str(tmp_path)]):
        assert in_process("up", "--brokers", "3", *words).returncode == 2


def test_ctrl_c_leaves_cleanly(braid: Braid) -> None:
    """The last one: the braid is gone then."""
    assert braid.process.stdout is not None
    os.kill(braid.process.pid, signal.SIGINT)
    assert braid.process.wait(TIMEOUT_S) == 0
    log = (braid.data.parent / "log").read_text()
    assert not [line for line in log.splitlines() if "Traceback" in line or "ERROR" in line]
    assert not list(braid.data.glob("*/admin.json"))
    assert "no broker that runs" in braid.ask("ring").stderr
