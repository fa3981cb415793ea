"""The table of docs/conformance.md is up to date, and no marker names a statement that does not exist."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from .table import ROOT, STATEMENTS


def test_the_document_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tests.conformance.table", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_list_of_statements_is_whole() -> None:
    """As many as the two specifications have, each with whom it binds and a short text."""
    found = tomllib.loads(STATEMENTS.read_text())
    assert {version: len(entries) for version, entries in found.items()} == {"3.1.1": 141, "5.0": 251}
    for entries in found.values():
        for number, (who, text, *_) in entries.items():
            assert number.startswith("MQTT-")
            assert who in ("server", "client", "both", "transport")
            assert 3 <= len(text.split()) <= 14
