"""The client of the admin port, against a server that gives the answers it is told to give."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from braidmq.admin.client import AdminClient
from braidmq.admin.contract import BatchPart, BatchRow, Move, Receipt
from braidmq.admin.errors import (
    AdminError,
    AnswerRefused,
    NotABroker,
    TooSlow,
    Unanswered,
    Unreachable,
    WrongToken,
)

LOG = {"broker": "site1", "id": "x", "partitions": 2, "first_offset": 0, "next_offset": 5, "format": 1}
RECEIPT = {"receipt": "kept", "rows": 1}
PART = BatchPart("query", 0, 0, True, (BatchRow("topic", b"\xff"),))


class FakeBroker:
    """Gives one answer to all questions, and counts the connections over which they come."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.questions: list[tuple[str, str, bytes, str]] = []
        """Method, path, body and content type of each."""
        self.connections = 0
        self.closes = False
        """Whether it closes each connection without a word once it has answered."""
        broker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                broker.connections += 1
                super().setup()

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                broker.questions.append((self.command, self.path, body, self.headers.get("Content-Type", "")))
                self.send_response(broker.status)
                self.send_header("Content-Length", str(len(broker.body)))
                self.end_headers()
                self.wfile.write(broker.body)
                self.close_connection = broker.closes

            do_GET = do_POST = answer  # noqa: N815 - the names that they have

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, answer: object, status: int = 200) -> None:
        self.body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.status = status


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    made = FakeBroker()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_an_answer_of_another_version_is_read_as_far_as_it_is_known(broker: FakeBroker) -> None:
    broker.says(LOG | {"colour": "green"})
    status = AdminClient(f"{broker.url}/").log()
    assert (status.broker, status.next_offset, status.rows) == ("site1", 5, 0)
    assert broker.questions == [("GET", "/log", b"", "")]


def test_questions_carry_what_they_ask_for(broker: FakeBroker) -> None:
    broker.says({"topics": [], "in_all": 0})
    AdminClient(broker.url).assigned_topics(topic="a b/ü")
    broker.says(RECEIPT)
    assert AdminClient(broker.url, "secret").publish(PART).receipt is Receipt.KEPT
    (_, path, _, _), (method, target, body, content_type) = broker.questions
    assert path == "/processing/topics?topic=a+b%2F%C3%BC"
    assert (method, target, content_type) == ("POST", "/publish", "application/json")
    assert json.loads(body)["rows"] == [["topic", "/w==", 1, False, []]]


@pytest.mark.parametrize(
    ("answer", "status", "kind", "text"),
    [
        (b"", 401, WrongToken, "asks for the right token"),
        ({"error": "8 reads are under way already"}, 503, AnswerRefused, "8 reads are under way already"),
        ({"error": "no such partition"}, 400, AnswerRefused, "no such partition"),
        (b"404: Not Found", 404, AnswerRefused, "it answered 404: is that the admin port of a broker?"),
        (b"<html>", 200, NotABroker, "gave no JSON: is that the admin port of a broker?"),
        ([], 200, NotABroker, "that this version cannot read"),
        ({"broker": "site1"}, 200, NotABroker, "that this version cannot read"),
    ],
)
def test_why_there_is_no_answer(
    broker: FakeBroker, answer: object, status: int, kind: type[AdminError], text: str
) -> None:
    broker.says(answer, status)
    with pytest.raises(kind) as error:
        AdminClient(broker.url).log()
    assert broker.url in str(error.value)
    assert text in str(error.value)
    assert broker.url not in error.value.reason
    if isinstance(error.value, AnswerRefused):
        assert error.value.is_for_now == (status == 503)
        assert error.value.is_broker == (answer != b"404: Not Found")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:no", "http://"])
def test_nothing_there(url: str) -> None:
    with pytest.raises(Unreachable, match="there is no admin port at http:"):
        AdminClient(url).log()


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Sends these bytes, whatever is asked, and closes; None says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                if answer is None:
                    connection.recv(65536)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize("answer", [b"", b"220 mail.example ESMTP\r\n"])
def test_what_is_no_http(answer: bytes) -> None:
    with listening(answer) as url, pytest.raises(Unanswered, match="gave no answer"):
        AdminClient(url).log()


def test_patience_ends() -> None:
    with listening(None) as url, pytest.raises(TooSlow, match=r"did not answer within 0\.1 s"):
        AdminClient(url, timeout_s=0.1).log()


def test_one_connection_serves_many_questions_until_the_broker_closes_it(broker: FakeBroker) -> None:
    broker.says(LOG)
    with AdminClient(broker.url) as client:
        for _ in range(3):
            client.log()
        assert broker.connections == 1
        broker.closes = True
        client.log()
        broker.closes = False
        broker.says(RECEIPT)
        client.publish(PART)  # asked over a connection that the broker has closed meanwhile, and then over a new one
        assert broker.connections == 2
        assert len(broker.questions) == 5


def test_what_must_not_be_asked_twice_goes_over_a_new_connection(broker: FakeBroker) -> None:
    broker.says(LOG)
    with AdminClient(broker.url) as client:
        client.log()
        broker.says({"error": "it is about to change hands"}, 409)
        with pytest.raises(AnswerRefused):
            client.move(Move("count", "a", "edge"))
    assert broker.connections == 2
