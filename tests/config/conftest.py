"""Configuration files in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from braidmq.config.load import load
from braidmq.config.settings import (
    Config,
)
from tests.config.reading import Read


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Loads a configuration file with this text, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> Config:
        Path("braidmq.toml").write_text(text, encoding="utf-8")
        return load("braidmq.toml", {}, {})

    return read


@pytest.fixture
def certificates(tmp_path: Path) -> None:
    """server.pem, server.key and ca.pem, and the key of another certificate."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "server.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (tmp_path / "server.key").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "other.key").write_bytes(authority.issue_cert("other").private_key_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
