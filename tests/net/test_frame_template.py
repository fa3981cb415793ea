"""Moulds: what two samples have in common, filled in and recognised."""

from __future__ import annotations

import pytest

from braidmq.net.frame_template import FrameTemplate


def test_a_template_has_a_hole_where_its_samples_differ() -> None:
    template = FrameTemplate(b"head\1\1mid\1tail", b"head\2\2mid\2tail")
    assert template.holes == [(4, 6), (9, 10)]
    assert template.size == 14


def test_what_is_filled_in_fits() -> None:
    template = FrameTemplate(b"head\1\1mid\1tail", b"head\2\2mid\2tail")
    filled = template.fill((b"ab", b"c"))
    assert filled == b"headabmidctail"
    assert template.fits(filled)
    assert template.fill((b"\0\0", b"\0")) == b"head\0\0mid\0tail"


@pytest.mark.parametrize(
    "data", [b"", b"headabmidctai", b"headabmidctails", b"Headabmidctail", b"headabmiDctail", b"headabmidctaiL"]
)
def test_what_differs_elsewhere_or_in_size_does_not_fit(data: bytes) -> None:
    assert not FrameTemplate(b"head\1\1mid\1tail", b"head\2\2mid\2tail").fits(data)


def test_holes_may_be_at_both_ends() -> None:
    template = FrameTemplate(b"\1x\1", b"\2x\2")
    assert template.holes == [(0, 1), (2, 3)]
    assert template.fill((b"a", b"b")) == b"axb"


def test_samples_that_are_equal_have_no_hole() -> None:
    template = FrameTemplate(b"\0same", b"\0same")
    assert template.holes == []
    assert template.fill(()) == b"\0same"
    assert template.fits(b"\0same")


def test_samples_of_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="samples of 3 and 4 bytes"):
        FrameTemplate(b"abc", b"abcd")
