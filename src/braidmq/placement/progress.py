"""How a long calculation tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Is told what is being done, and which part of it is done."""
