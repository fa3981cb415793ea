"""Mappings that forget their oldest entry."""

from __future__ import annotations

import pytest

from braidmq.bounded import BoundedDict


def test_the_oldest_entry_makes_room() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abc"):
        kept[key] = number
    assert kept == {"b": 1, "c": 2}


def test_an_entry_that_is_assigned_again_is_no_younger_for_it() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abac"):
        kept[key] = number
    assert kept == {"b": 1, "c": 3}


def test_an_entry_that_is_renewed_is_the_youngest() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abac"):
        kept.renew(key, number)
    assert list(kept.items()) == [("a", 2), ("c", 3)]


def test_what_goes_to_make_room_is_told_and_what_is_deleted_is_not() -> None:
    dropped: list[tuple[str, int]] = []
    kept: BoundedDict[str, int] = BoundedDict(2, lambda key, value: dropped.append((key, value)))
    for number, key in enumerate("abc"):
        kept[key] = number
    kept.renew("b", 7)
    del kept["c"]
    kept["d"] = 8
    assert kept == {"b": 7, "d": 8}
    assert dropped == [("a", 0)]


def test_a_default_is_bounded_too() -> None:
    kept: BoundedDict[str, list[int]] = BoundedDict(2)
    for number, key in enumerate("aabc"):
        kept.setdefault(key, []).append(number)
    assert kept == {"b": [2], "c": [3]}


def test_as_a_set_it_says_what_is_new() -> None:
    seen: BoundedDict[str, None] = BoundedDict(2)
    assert [seen.add(key) for key in "aabca"] == [True, False, True, True, True]
    assert list(seen) == ["c", "a"]


def test_nothing_goes_past_the_bound() -> None:
    kept: BoundedDict[str, int] = BoundedDict(1)
    with pytest.raises(TypeError, match="entry by entry"):
        kept.update({"a": 1, "b": 2})
    with pytest.raises(TypeError, match="entry by entry"):
        kept |= {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="not for 0"):
        BoundedDict(0)
