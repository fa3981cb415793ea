"""A braid of three sites in one process, and a subscriber at one of them."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.commands import COMMAND, environment, in_process
from tests.conftest import READY_TIMEOUT_S, _first_line
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S
TOKEN = "between-us"


class Braid:
    """`braidmq up --brokers 3`, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        options = ["--brokers", "3", "--port", "0", "--admin-port", "0", "--set", f"admin.token={TOKEN}", "--json"]
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--data", str(self.data), *options],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("wb"),
            env=environment(),
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(_first_line(self.process.stdout, READY_TIMEOUT_S))
        self.ports = [self.port(number, "mqtt") for number in range(3)]

    def port(self, number: int, scheme: str) -> int:
        addresses = self.ready["sites"][number]["addresses"]
        found = next(port for one in addresses if urlsplit(one).scheme == scheme and (port := urlsplit(one).port))
        return int(found)

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.port(number, 'http')}"

    def ask(self, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        return in_process(*words, "--data", self.data, env={"BRAIDMQ_TOKEN": token})

    def json(self, *words: str) -> dict[str, Any]:
        done = self.ask(*words, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def get(self, number: int, path: str) -> str:
        request = urllib.request.Request(self.url(number) + path, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return str(response.read().decode())

    def samples(self, number: int) -> dict[tuple[str, ...], float]:
        """By name and label values, in the order of the labels' names; peers aside."""
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(self.get(number, "/metrics")):
            for sample in family.samples:
                name = (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "peer"))
                found[name] = found.get(name, 0.0) + sample.value
        return found


class Subscriber:
    def __init__(self, port: int, topic_filter: str) -> None:
        self.got: queue.Queue[tuple[str, bytes]] = queue.Queue()
        subscribed = threading.Event()
        self.client = paho.Client(CallbackAPIVersion.VERSION2)
        self.client.on_message = lambda _client, _data, message: self.got.put((message.topic, bytes(message.payload)))
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.on_connect = lambda client, *_: client.subscribe(topic_filter, 1)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert subscribed.wait(TIMEOUT_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
