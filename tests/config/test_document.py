"""docs/configuration.md: every key, and examples that work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braidmq.config.docs import BEGIN, END, key_table, updated
from braidmq.security.passwords import set_password
from braidmq.security.settings import Plugin
from tests.config.reading import CHEAP, DOCUMENT, SECRET, Read

# The document


def test_the_document_has_all_keys() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    command = "python -m braidmq.config.docs docs/configuration.md"
    assert updated(text) == text, f"the structs have changed; run: {command}"
    for name in ("`port`", "`receive_max`", "`user_claim`", "`topics`", "`sync`", "`level`"):
        assert f"| {name} |" in key_table()


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        updated(f"{BEGIN} and no end")
    assert updated(f"a{BEGIN}{END}b") == f"a{BEGIN}\n{key_table()}\n{END}b"


def test_the_examples_in_the_document_work(read: Read, certificates: None) -> None:
    example, plugins = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    Path("ca.pem").rename("devices-ca.pem")
    Path("jwt.secret").write_text(SECRET, encoding="utf-8")
    set_password("passwords", "alice", "x", hasher=CHEAP)
    config = read(example)
    assert [listener.name for listener in config.listeners] == ["local", "devices", "dashboards"]
    assert [config.admits_anonymous(listener) for listener in config.listeners] == [True, False, False]
    config = read(plugins)
    assert config.authentication.enhanced == (Plugin(use="company.mqtt:Scram", options={"iterations": 10_000}),)
