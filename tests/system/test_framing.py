"""Frames over pipes and sockets: whatever the pieces in which they arrive, they come out as they were sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.system.framing import FRAME_BYTES_MAX, BrokenFrame, FrameSplitter, FrameWriter, frame, read_frame


class Greeting(msgspec.Struct):
    text: str
    payload: bytes


messages = st.lists(st.builds(Greeting, st.text(max_size=20), st.binary(max_size=300)), max_size=10)
decode = msgspec.msgpack.Decoder(Greeting).decode


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


@given(messages, st.data())
@settings(deadline=None)
def test_frames_in_any_pieces(sent: list[Greeting], data: st.DataObject) -> None:
    stream = b"".join(map(frame, sent))
    splitter = FrameSplitter()
    received: list[Greeting] = []
    at = 0
    while at < len(stream):
        end = at + data.draw(st.integers(1, 400))
        received += map(decode, splitter.split(stream[at:end]))
        at = end
    assert received == sent


def test_a_pipe_carries_more_than_it_holds(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sent = [Greeting("large", bytes(3 << 20)), Greeting("small", b"")]

    def send() -> None:
        writer = FrameWriter()
        for one in sent:
            writer.write(writing, one)
        os.close(writing)

    thread = threading.Thread(target=send)
    thread.start()
    received = []
    while (body := read_frame(reading)) is not None:
        received.append(decode(body))
    thread.join()
    assert received == sent


def test_both_ways_to_send_are_the_same_on_the_wire(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    FrameWriter().write(writing, Greeting("hello", b"x"))
    assert os.read(reading, 100) == frame(Greeting("hello", b"x"))


@pytest.mark.parametrize("length", [0, 2, 4, 6])
def test_a_sender_that_ends_in_the_middle_of_a_frame(pipe: tuple[int, int], length: int) -> None:
    reading, writing = pipe
    os.write(writing, frame(Greeting("hello", b"x"))[:length])
    os.close(writing)
    assert read_frame(reading) is None


def test_a_frame_that_is_too_large_is_refused(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    head = (FRAME_BYTES_MAX + 1).to_bytes(4)
    os.write(writing, head)
    with pytest.raises(BrokenFrame, match="a frame of 1,073,741,825 bytes"):
        read_frame(reading)
    with pytest.raises(BrokenFrame):
        list(FrameSplitter().split(head))
