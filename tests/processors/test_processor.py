"""A processor by itself: spools, what goes in and comes out, and how it is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.processors import (
    Message,
    Notification,
    Processor,
    ProcessorError,
    Spool,
    SpoolState,
    processor,
    spool_step,
)
from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Failure, Output


def message(offset: int, payload: bytes = b"", topic: str = "t/1", **more: Any) -> Message:
    return Message(topic, payload, offset=offset, **more)


def made(function: Any, spool: int = 3, output: str | None = "out", **more: Any) -> Processor:
    return processor(topic="t/+", spool=spool, output=output, name="one", **more)(function)


# Spools


@given(st.integers(1, 6), st.lists(st.integers(0, 30)))
@settings(deadline=None)
def test_a_spool_has_the_last_messages_in_the_order_of_their_offsets(size: int, offsets: list[int]) -> None:
    """Whatever comes, also twice or late: only what is new goes in, and the oldest out."""
    spool = Spool(size)
    rising: list[int] = []
    for offset in offsets:
        is_new = not rising or offset > rising[-1]
        assert spool.put(message(offset)) == is_new
        rising += [offset] if is_new else []
        expected = rising[-size:]
        assert [one.offset for one in spool] == expected == [spool[place].offset for place in range(len(spool))]
        assert spool.last == (rising[-1] if rising else -1)
        assert spool.is_full == (len(expected) == size)


@given(st.lists(st.binary(max_size=5), max_size=12), st.slices(10))
@settings(deadline=None)
def test_a_spool_is_a_sequence(payloads: list[bytes], part: slice) -> None:
    spool = Spool(10)
    for offset, payload in enumerate(payloads):
        spool.put(message(offset, payload))
    same = [message(offset, payload) for offset, payload in enumerate(payloads)][-10:]
    assert spool[part] == same[part]
    assert list(reversed(spool)) == same[::-1]
    assert all(one in spool for one in same)
    if same:
        assert (spool[0], spool[-1]) == (same[0], same[-1])
    with pytest.raises(IndexError):
        spool[len(same)]


@given(st.integers(1, 5), st.lists(st.binary(max_size=9), max_size=20), st.integers(0, 20))
@settings(deadline=None)
def test_a_spool_that_is_handed_over_goes_on_as_if_it_had_not_been(size: int, payloads: list[bytes], cut: int) -> None:
    def digest(spool: Spool, last: Message) -> Notification:
        return Notification([one.payload.hex() for one in spool])

    one = made(digest, spool=size)
    alone, first = Spool(size), Spool(size)
    messages = [message(3 * number, payload) for number, payload in enumerate(payloads)]
    expected = [spool_step(one, alone, each) for each in messages]
    found = [spool_step(one, first, each) for each in messages[:cut]]
    second = Spool(size, SpoolState.decode(first.state.encode()))
    found += [spool_step(one, second, each) for each in messages[max(0, cut - 2) :] if each.offset > first.last]
    assert found == expected
    assert second.state == alone.state


def test_what_was_there_leads_to_nothing() -> None:
    calls: list[int] = []
    one = made(lambda spool, last: calls.append(last.offset))
    spool = Spool(3)
    for offset in (5, 5, 4, 6):
        assert spool_step(one, spool, message(offset)) is None
    assert calls == [5, 6]


# What comes in


def test_payloads_are_read_with_clear_errors() -> None:
    assert message(0, b'{"a": [1, 2.5]}').json() == {"a": [1, 2.5]}
    assert message(0, "wörter".encode()).text() == "wörter"
    spool = Spool(3)
    for function, words in ((Message.json, "not JSON"), (Message.text, "not UTF-8 text: byte 1 of 2")):
        failure = spool_step(made(lambda _, last, read=function: read(last)), spool, message(spool.last + 1, b"a\xff"))
        assert isinstance(failure, Failure)
        assert failure.what == "payload"
        assert words in failure.text
    assert [one.payload for one in spool] == [b"a\xff", b"a\xff"]  # a message that was failed on stays


def test_a_function_may_fail_in_any_way() -> None:
    def divide(spool: Spool, last: Message) -> Notification:
        return Notification(1 / len(last.payload))

    def end(spool: Spool, last: Message) -> Notification:
        raise SystemExit("I am done")

    def strange(spool: Spool, last: Message) -> Notification:
        raise RuntimeError("\ud800" + "x" * 5000)

    for function, words in ((divide, "ZeroDivisionError"), (end, "I am done"), (strange, "RuntimeError: ?xxx")):
        failure = spool_step(made(function), Spool(3), message(0))
        assert isinstance(failure, Failure)
        assert failure.what == "function"
        assert words in failure.text
        assert len(msgspec.json.encode(failure)) < 2000
    assert isinstance(spool_step(made(divide), Spool(3), message(0, b"xx")), Output)


# What comes out


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"more"), b"more"),
        ("tëxt", "tëxt".encode()),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (7, b"7"),
        (None, b"null"),
    ],
)
def test_payloads_of_notifications(payload: object, expected: bytes) -> None:
    said = spool_step(made(lambda *_: Notification(payload)), Spool(1), message(0))
    assert said == Output("out", expected, 1, False, ())


def test_a_notification_says_where_and_how() -> None:
    full = Notification("x", "t/1/alerts", 2, True, {"site": "7", "unit": "°C"})
    said = spool_step(made(lambda *_: full), Spool(1), message(0))
    assert said == Output("t/1/alerts", b"x", 2, True, (("site", "7"), ("unit", "°C")))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("text", "expected a Notification"),
        (Notification(b"", topic="t/9"), "own input"),
        (Notification(b"", topic="a/+"), "wildcard"),
        (Notification(b"", topic=""), "empty"),
        (Notification(b"", topic="$SYS/x"), "only brokers"),
        (Notification(b"", topic="a\0"), "MQTT can carry"),
        (Notification(b"", topic="\ud800"), "MQTT can carry"),
        (Notification(b"", topic="a" * 70_000), "MQTT can carry"),
        (Notification(b"", topic=7), "expected text"),  # type: ignore[arg-type]
        (Notification(b"", qos=3), "expected 0, 1 or 2"),
        (Notification(object()), "cannot be written as JSON"),
        (Notification(b"", properties={"a": 1}), "pairs of texts"),  # type: ignore[dict-item]
        (Notification(b"", properties=["ab", "c"]), "pairs of texts"),  # type: ignore[list-item]
        (Notification(b"", properties=7), "pairs of texts"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_published_is_an_error(given: Any, words: str) -> None:
    failure = spool_step(made(lambda *_: given), Spool(1), message(0))
    assert isinstance(failure, Failure)
    assert failure.what == "result"
    assert words in failure.text


def test_without_an_output_the_notification_needs_a_topic() -> None:
    failure = spool_step(made(lambda *_: Notification(b""), output=None), Spool(1), message(0))
    assert isinstance(failure, Failure)
    assert "no topic" in failure.text


# Processors


def test_the_decorated_function_can_be_called_as_it_is() -> None:
    @processor(topic="bus/+/frames", spool=20, output="bus/alerts")
    def passengers(spool: Spool, message: Message) -> Notification | None:
        return Notification(len(spool)) if message.payload else None

    assert (passengers.name, passengers.topic, passengers.spool) == ("passengers", "bus/+/frames", 20)
    assert passengers(Spool(20), message(0)) is None
    assert passengers.changed(spool=5, topic="x").spool == 5
    assert passengers.changed().output == "bus/alerts"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"topic": "a/#/b"}, "before the last level"),
        ({"topic": "$SYS/#"}, "not processed"),
        ({"topic": "a/#", "output": "a/b"}, "go round for ever"),
        ({"output": "b/+"}, "wildcard"),
        ({"output": "$processor/x"}, "only brokers"),
        ({"spool": 0}, "from 1 to"),
        ({"spool": True}, "from 1 to"),
        ({"spool": 2_000_000}, "from 1 to"),
        ({"name": "a/b"}, "leave out / + #"),
        ({"name": ""}, "leave out / + #"),
        ({"time_limit_s": 0}, "above 0"),
    ],
)
def test_a_processor_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"topic": "t", "spool": 1, "name": "one"} | settings
    make = processor(**arguments)
    with pytest.raises(ProcessorError, match=words.replace("+", r"\+")):
        make(lambda *_: None)


# Where they are found

ONE = """
from braidmq.processors import processor, Notification
from beside import WORDS

@processor(topic="a/+", spool=2, output="b")
def one(spool, message):
    return Notification(WORDS)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORDS = 'from beside'\n")
    (tmp_path / "json.py").write_text(ONE)
    return tmp_path


def test_a_file_with_one(folder: Path) -> None:
    """It may be called as a module of Python, and import what lies beside it."""
    one = load_processor(str(folder / "json.py"))
    assert spool_step(one, Spool(2), message(0)) == Output("b", b"from beside", 1, False, ())
    import json

    assert json.dumps(1) == "1"


def test_a_file_with_several(folder: Path) -> None:
    both = folder / "both.py"
    both.write_text(ONE + ONE.replace("def one", "def two"))
    with pytest.raises(ProcessorError, match=r"has 2 processors: say which, as in .*both.py:one"):
        load_processor(str(both))
    assert load_processor(f"{both}:two").name == "two"
    with pytest.raises(ProcessorError, match="no processor 'three', only one, two"):
        load_processor(f"{both}:three")


def test_a_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").touch()
    (folder / "pack" / "inner.py").write_text(ONE)
    monkeypatch.syspath_prepend(str(folder))
    assert load_processor("pack.inner").name == "one"
    assert load_processor("pack.inner:one").name == "one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "has no processor"),
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module_here\n", "imports no_such_module_here, which is not installed"),
        ("x = 1\nraise RuntimeError('no')\n", r"RuntimeError: no \(line 2\)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("from braidmq.processors import processor\n@processor(topic='', spool=1)\ndef f(s, m): ...\n", "empty topic"),
    ],
)
def test_files_that_hold_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    with pytest.raises(ProcessorError, match=words):
        load_processor(str(path))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError, match="there is no file"):
        load_processor(str(tmp_path / "none.py"))
    with pytest.raises(ProcessorError, match=r"no module no_such\.thing: give a file"):
        load_processor("no_such.thing")
