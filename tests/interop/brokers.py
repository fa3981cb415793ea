"""One broker with a listener of every kind, so that each client is tried over each way it knows."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.conftest import Broker


class AllListeners:
    """The broker and what a client needs to trust it."""

    def __init__(self, folder: Path) -> None:
        self.ca_file = folder / "ca.pem"
        self.unix_path = folder / "broker.sock"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca_file))
        certificate, key = folder / "server.pem", folder / "server.key"
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        tls = f'certificate = "{certificate}"\nkey = "{key}"\n'
        config = folder / "braidmq.toml"
        config.write_text(
            '[[listeners]]\nname = "tcp"\nport = 0\n'
            f'[[listeners]]\nname = "tls"\nkind = "tls"\nport = 0\n{tls}'
            '[[listeners]]\nname = "ws"\nkind = "ws"\nport = 0\n'
            f'[[listeners]]\nname = "wss"\nkind = "wss"\nport = 0\n{tls}'
            f'[[listeners]]\nname = "unix"\nkind = "unix"\npath = "{self.unix_path}"\n'
        )
        self.broker = Broker(folder, folder / "data", ["--config", str(config)], None, {})

    @property
    def port(self) -> int:
        return self.broker.port

    def port_of(self, transport: str) -> int:
        return self.broker.port_of({"tcp": "mqtt", "tls": "mqtts"}.get(transport, transport))

    @property
    def tls_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))


@contextmanager
def running(folder: Path) -> Iterator[AllListeners]:
    served = AllListeners(folder)
    try:
        yield served
        assert served.broker.terminate() == 0
        assert "Traceback" not in served.broker.log
    finally:
        if served.broker.running:
            served.broker.kill9()
