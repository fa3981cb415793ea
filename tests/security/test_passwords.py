"""The password file: what may stand in it, how it is changed, and how passwords are checked within bounds."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path

import argon2
import pytest

from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Origin, Refusal, Verdict
from braidmq.security.passwords import (
    PasswordFile,
    PasswordFileError,
    delete_user,
    read_password_file,
    set_password,
    users,
)

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class Counting(argon2.PasswordHasher):
    """Counts real checks, and holds them up while the gate is closed."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.checked: list[str] = []
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # type: ignore[override]  # noqa: A002
        self.checked.append(str(hash))
        self.began.set()
        assert self.gate.wait(10)
        return super().verify(hash, password)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "passwords")


def shown(username: str | None, password: bytes | None) -> Credentials:
    return Credentials("client", username, password, Origin())


async def verdict(answer: Verdict | Awaitable[Verdict]) -> Verdict:
    return await answer if isinstance(answer, Awaitable) else answer


# The file


def test_set_change_and_delete(path: str) -> None:
    assert set_password(path, "alice", "one", hasher=CHEAP)
    assert set_password(path, "böb", b"two", hasher=CHEAP)
    assert users(path) == ["alice", "böb"]
    before = read_password_file(path)
    assert before["alice"].startswith("$argon2id$")
    assert not set_password(path, "alice", "three", hasher=CHEAP)
    assert users(path) == ["alice", "böb"]
    assert read_password_file(path)["alice"] != before["alice"]
    assert read_password_file(path)["böb"] == before["böb"]
    delete_user(path, "alice")
    assert users(path) == ["böb"]
    with pytest.raises(PasswordFileError, match="has no user 'alice'"):
        delete_user(path, "alice")


def test_the_standard_hash_is_memory_hard(path: str) -> None:
    set_password(path, "alice", "secret")
    parameters = argon2.extract_parameters(read_password_file(path)["alice"])
    assert parameters.type is argon2.Type.ID
    assert parameters.memory_cost >= 19 * 1024


def test_comments_stay_and_only_the_owner_reads(path: str, tmp_path: Path) -> None:
    Path(path).write_text("# operators\n\n", encoding="utf-8")
    os.chmod(path, 0o644)
    set_password(path, "alice", "x", hasher=CHEAP)
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    assert lines[:2] == ["# operators", ""]
    assert lines[2].startswith("alice:$argon2id$")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["passwords"]


def test_a_symbolic_link_stays_one(path: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    set_password(str(link), "alice", "x", hasher=CHEAP)
    assert link.is_symlink()
    assert users(path) == ["alice"]


@pytest.mark.parametrize("user", ["", "a:b", "a\nb", "a\rb", "a\0", "#a", "a\u2028b", "x" * 65_536])
def test_user_names_that_cannot_be(path: str, user: str) -> None:
    with pytest.raises(PasswordFileError, match="cannot be used"):
        set_password(path, user, "secret", hasher=CHEAP)
    assert not os.path.exists(path)


def test_an_empty_password_is_refused(path: str) -> None:
    with pytest.raises(PasswordFileError, match="empty"):
        set_password(path, "alice", "", hasher=CHEAP)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("# c\nalice\n", 'line 2: expected "user:hash"'),
        ("alice:plain\n", "line 1: the hash of user 'alice' is not one of argon2id"),
        ("\n\nalice:$argon2i$v=19$m=8,t=1,p=1$YWFhYWFhYWE$YWFh\n", "line 3: the hash"),
        ("{good}\n{good}\n", "line 2: user 'alice' is already in line 1"),
        (":{hash}\n", "line 1: it is empty"),
    ],
)
def test_errors_name_the_line(path: str, lines: str, expected: str) -> None:
    known = CHEAP.hash("x")
    Path(path).write_text(lines.format(good=f"alice:{known}", hash=known), encoding="utf-8")
    for use in (users, PasswordFile.load, lambda path: set_password(path, "bob", "x", hasher=CHEAP)):
        with pytest.raises(PasswordFileError) as caught:
            use(path)
        assert expected in str(caught.value)
        assert path in str(caught.value)


def test_files_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    with pytest.raises(PasswordFileError, match="No such file"):
        users(path)
    with pytest.raises(PasswordFileError, match="Is a directory"):
        users(str(tmp_path))
    with pytest.raises(PasswordFileError, match="folder"):
        set_password(str(tmp_path / "none" / "file"), "alice", "x", hasher=CHEAP)
    Path(path).write_bytes(b"# fine\n\xff\n")
    with pytest.raises(PasswordFileError, match="line 2: is not UTF-8"):
        users(path)


def test_changes_at_the_same_time_are_not_lost(path: str) -> None:
    code = (
        "import argon2, sys; from braidmq.security.passwords import set_password\n"
        "cheap = argon2.PasswordHasher(1, 8, 1)\n"
        "for n in range(20): set_password(sys.argv[1], sys.argv[2] + str(n), 'x', hasher=cheap)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in ("a", "b")]
    assert [writer.wait(30) for writer in writers] == [0, 0]
    assert sorted(users(path)) == sorted(f"{name}{number}" for name in "ab" for number in range(20))


# Checking


async def test_right_wrong_and_unknown(path: str) -> None:
    set_password(path, "alice", "right", hasher=CHEAP)
    file = PasswordFile.load(path)
    assert await file.verify("alice", b"right") == Identity("alice")
    wrong = await file.verify("alice", b"wrong")
    assert isinstance(wrong, Refusal)
    assert wrong.reason is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await file.verify("mallory", b"right") is None


async def test_only_name_and_password_together_are_judged() -> None:
    file = PasswordFile({"alice": CHEAP.hash("")}, hasher=CHEAP)
    assert file.authenticate(shown("alice", None)) is None
    assert file.authenticate(shown(None, b"x")) is None
    assert await verdict(file.authenticate(shown("alice", b""))) == Identity("alice")


async def test_an_unknown_user_costs_the_same_hash() -> None:
    hasher = Counting()
    known = argon2.PasswordHasher(time_cost=2, memory_cost=16, parallelism=1).hash("x")
    file = PasswordFile({"alice": known}, hasher=hasher)
    assert await file.verify("nobody", b"x") is None
    (used,) = hasher.checked
    assert used != known
    assert argon2.extract_parameters(used) == argon2.extract_parameters(known)


async def test_what_was_right_is_remembered_within_a_bound() -> None:
    hasher = Counting()
    file = PasswordFile({name: CHEAP.hash("x") for name in "abc"}, hasher=hasher, remembered_max=2)
    for _ in range(3):
        assert await verdict(file.authenticate(shown("a", b"x"))) == Identity("a")
    assert len(hasher.checked) == 1
    assert file.authenticate(shown("a", b"x")) == Identity("a")  # at once, nothing to wait for
    for _ in range(2):
        assert isinstance(await verdict(file.authenticate(shown("a", b"y"))), Refusal)
    assert len(hasher.checked) == 3  # what was wrong is not remembered
    for name in "bc":
        await verdict(file.authenticate(shown(name, b"x")))
    assert len(hasher.checked) == 5
    await verdict(file.authenticate(shown("a", b"x")))
    assert len(hasher.checked) == 6  # "a" had to leave


async def test_a_remembered_password_belongs_to_its_user() -> None:
    file = PasswordFile({"ab": CHEAP.hash("c"), "a": CHEAP.hash("zz")}, hasher=CHEAP)
    assert await file.verify("ab", b"c") == Identity("ab")
    assert isinstance(await verdict(file.authenticate(shown("a", b"bc"))), Refusal)


async def test_a_new_password_counts_after_loading_again(path: str) -> None:
    set_password(path, "alice", "old", hasher=CHEAP)
    file = PasswordFile.load(path)
    assert await file.verify("alice", b"old") == Identity("alice")
    set_password(path, "alice", "new", hasher=CHEAP)
    file = PasswordFile.load(path)
    assert isinstance(await verdict(file.authenticate(shown("alice", b"old"))), Refusal)
    assert await file.verify("alice", b"new") == Identity("alice")


async def test_too_many_at_once_are_told_so() -> None:
    hasher = Counting()
    hasher.gate.clear()
    file = PasswordFile({"alice": CHEAP.hash("x")}, hasher=hasher, checks_running_max=1, checks_max=3)
    waiting = [asyncio.create_task(file.verify("alice", b"x")) for _ in range(3)]
    await asyncio.sleep(0)
    busy = await file.verify("alice", b"x")
    assert isinstance(busy, Refusal)
    assert busy.reason is Reason.SERVER_BUSY
    hasher.gate.set()
    assert await asyncio.gather(*waiting) == [Identity("alice")] * 3
    assert len(hasher.checked) == 1  # the two that waited found the first one's result
    assert await file.verify("alice", b"x") == Identity("alice")


async def test_clients_that_give_up_free_their_place() -> None:
    hasher = Counting()
    hasher.gate.clear()
    file = PasswordFile({"alice": CHEAP.hash("x")}, hasher=hasher, checks_running_max=1, checks_max=2)
    running = asyncio.create_task(file.verify("alice", b"x"))
    waiting = asyncio.create_task(file.verify("alice", b"x"))
    assert await asyncio.to_thread(hasher.began.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.create_task(file.verify("alice", b"x"))
    await asyncio.sleep(0)
    busy = await file.verify("alice", b"x")
    assert isinstance(busy, Refusal)
    hasher.gate.set()
    assert await running == await again == Identity("alice")
