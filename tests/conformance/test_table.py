"""The table of docs/conformance.md is up to date, and no marker names a statement that does not exist."""

from __future__ import annotations

import tomllib

from .table import STATEMENTS, collect, main, statements


def test_the_document_is_up_to_date() -> None:
    main(["--check"])


def test_every_marker_names_a_statement_that_exists() -> None:
    assert set(collect()) <= set(statements())


def test_the_list_of_statements_is_whole() -> None:
    """As many as the two specifications have, each with whom it binds and a short text."""
    found = tomllib.loads(STATEMENTS.read_text())
    assert {version: len(entries) for version, entries in found.items()} == {"3.1.1": 141, "5.0": 251}
    for entries in found.values():
        for number, (who, text, *_) in entries.items():
            assert number.startswith("MQTT-")
            assert who in ("server", "client", "both", "transport")
            assert 3 <= len(text.split()) <= 14
