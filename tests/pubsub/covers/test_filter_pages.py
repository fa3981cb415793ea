"""Pages of filters: what goes in comes out, and what is no page is refused."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.pubsub.covers.filter_pages import FILTER_MAX, RAW_PAGE_MAX, filters_in, hash_of, pages_of
from tests.pubsub.covers.names import filters

EXAMPLES = settings(max_examples=200, deadline=None, print_blob=True)

any_filters = st.one_of(filters, st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))


@given(st.lists(any_filters, unique=True), st.integers(1, 500))
@EXAMPLES
def test_pages_have_all_filters_in_order(held: list[str], bytes_max: int) -> None:
    pages = list(pages_of(held, bytes_max))
    read = [filters_in(page) for page in pages]
    assert [one for each in read for one in each] == sorted(held)
    assert all(len(page) <= bytes_max or len(each) == 1 for page, each in zip(pages, read, strict=True))


def test_a_large_set_takes_few_bytes_and_several_pages() -> None:
    held = [f"cmd/device{number:06}/#" for number in range(50_000)]
    pages = list(pages_of(reversed(held), 16_384))
    assert [one for page in pages for one in filters_in(page)] == held
    assert max(len(page) for page in pages) <= 16_384
    assert sum(len(page) for page in pages) < 4 * len(held)


def test_filters_may_be_as_long_as_mqtt_allows() -> None:
    held = [letter * FILTER_MAX for letter in "abcdefgh"] + ["é" * (FILTER_MAX // 2)]
    pages = list(pages_of(held, 1 << 20))
    assert [one for page in pages for one in filters_in(page)] == held
    assert len(pages) > 1  # by what they expand to


@given(st.one_of(st.binary(), st.binary().map(zlib.compress)))
@EXAMPLES
def test_arbitrary_bytes_are_a_page_or_refused(page: bytes) -> None:
    try:
        read = filters_in(page)
    except ValueError:
        return
    assert [one for again in pages_of(read, RAW_PAGE_MAX) for one in filters_in(again)] == sorted(read)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"", "cut short"),
        (b"cmd/+/#", "not a page of filters"),
        (zlib.compress(b""), "an empty filter"),
        (zlib.compress(b"a\0\0b"), "an empty filter"),
        (zlib.compress(b"a\0b\0"), "an empty filter"),
        (zlib.compress(b"\xff"), "not UTF-8"),
        (zlib.compress(b"a") + b"a", "after its end"),
        (zlib.compress(b"a")[:-1], "cut short"),
    ],
)
def test_what_is_no_page_is_refused_with_a_reason(page: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        filters_in(page)


@pytest.mark.parametrize("size", [RAW_PAGE_MAX + 1, 1 << 26])
def test_what_expands_to_too_much_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="expands to more than"):
        filters_in(zlib.compress(b"a" * size))
    assert len(filters_in(zlib.compress(b"a" * RAW_PAGE_MAX))) == 1


def test_the_hash_of_a_filter_is_the_same_everywhere() -> None:
    assert hash_of("cmd/+/#") == 0xB8F580AF3E7261C6
    assert len({hash_of(f"cmd/{number}/#") for number in range(10_000)}) == 10_000
    assert all(0 <= hash_of(f"cmd/{number}/#") < 1 << 64 for number in range(100))
