"""A broker with processors, for the tests: real sockets, real worker processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.raw import TIMEOUT_S, Client, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

HEAD = """
import os
import sys
import time
from braidmq.processors import Message, Notification, Spool, processor

"""

ECHO = (
    HEAD
    + """
@processor(topic="in/+", spool=3, output="out")
def echo(spool: Spool, message: Message) -> Notification | None:
    text = message.text()
    if text == "crash":
        os._exit(3)
    if text == "loop":
        while True:
            pass
    if text == "swallow":
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue
    if text == "quiet":
        return None
    return Notification([one.payload.decode(errors="replace") for one in spool])
"""
)

ADMIN = "[admin]\nport = 0\n"


class Site:
    """A broker whose configuration can be written anew."""

    def __init__(self, start: StartBroker, folder: Path, text: str = ECHO, settings: str = "", more: str = "") -> None:
        self.file = folder / "one.py"
        self.file.write_text(text)
        self.config = folder / "site.toml"
        self.config.write_text(f'{ADMIN}{more}\n[[processor]]\nfile = "{self.file}"\n{settings}\n')
        self.broker: Broker = start(arguments=["--config", str(self.config)])

    def get(self, path: str) -> Any:
        with urlopen(self.broker.address("http") + path, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
        request = Request(self.broker.address("http") + path, body, {"Content-Type": content_type})
        try:
            with urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, json.load(response)
        except HTTPError as refused:
            return refused.code, json.load(refused)

    @property
    def processors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/processing")["processors"]
        return found

    @property
    def one(self) -> dict[str, Any]:
        return self.processors[0]

    def wait_for(self, **values: object) -> dict[str, Any]:
        """Until the processor is as said."""
        wait_until(lambda: all(self.one[name] == value for name, value in values.items()), f"{values}: {self.one}")
        return self.one

    def reload(self) -> None:
        before = self.broker.log.count("reloaded:")
        self.broker.signal(signal.SIGHUP)
        wait_until(lambda: self.broker.log.count("reloaded:") > before, "the broker answers the signal")

    def listener(self, *filters: str) -> Client:
        client = Client(self.broker, "listener")
        for topic_filter in filters or ("out", "$processor/+/errors"):
            assert client.subscribe(topic_filter, 1) == 1
        return client


def said(client: Client, count: int) -> list[Any]:
    """The next notifications and errors, as JSON."""
    return [json.loads(message.payload) for message in client.messages(count)]
