"""What is configured about copies."""

from __future__ import annotations

from typing import NamedTuple


class CopySettings(NamedTuple):
    copies: int = 2
    """Of the journal, its own included; 1 turns mirrors off."""
    required: int = 1
    """With fewer, publications of QoS 1 and 2 are refused, and so are sessions that stay."""
    failure_domain: str = ""
    """If it is set, mirrors are in others."""
