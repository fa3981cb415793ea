"""Several numbers in one option: `1-3`, `1,5,9`, `0.5,2`."""

from __future__ import annotations

import math

from braidmq.cli.errors import UsageError


def read_words(text: str) -> list[str]:
    """What stands between commas, each once."""
    return list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


def read_seeds(text: str, seeds_max: int) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds {text}: {part.strip()!r} is no number and no range", "Write 1-3 or 1,5,9.")
        end = int(last) if dash else int(first)
        if end - int(first) >= seeds_max:
            raise UsageError(f"--seeds {text}: at most {seeds_max:,}")
        if end < int(first):
            raise UsageError(f"--seeds {text}: the smaller one comes first, as in 1-3")
        seeds += range(int(first), end + 1)
    if len(seeds) > seeds_max:
        raise UsageError(f"--seeds {text}: at most {seeds_max:,}")
    return list(dict.fromkeys(seeds))


def read_numbers(option: str, text: str, least: float) -> list[float]:
    """Numbers of at least so much."""
    found = []
    for word in read_words(text):
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < least:
            raise UsageError(f"{option} {text}: {word!r} is no number from {least:g} on", "Write 5, or 1,5,10,20.")
        found.append(number)
    if not found:
        raise UsageError(f"{option} needs a number", "Write 5, or 1,5,10,20.")
    return found
