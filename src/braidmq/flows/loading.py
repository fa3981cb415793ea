"""Reads a flow from TOML, with errors that say what is wrong and where."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from braidmq.flows.flow import Dataflow, FlowError


def load_flow(path: Path) -> Dataflow:
    """The flow in a file; a FlowError says why there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FlowError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FlowError(f"{path} is not UTF-8 text: byte {error.start} is wrong") from None
    try:
        return read_flow(text)
    except FlowError as error:
        raise FlowError(f"{path}: {error}") from None


def read_flow(text: str) -> Dataflow:
    try:
        return msgspec.convert(tomllib.loads(text), Dataflow)
    except tomllib.TOMLDecodeError as error:
        raise FlowError(f"this is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, FlowError):
            raise error.__cause__ from None
        raise FlowError(str(error)) from None
