"""`passwd`: users in a password file."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, braidmq, in_process


def test_passwd_adds_changes_lists_and_deletes(tmp_path: Path) -> None:
    file = tmp_path / "users.txt"
    added = braidmq("passwd", file, "ada", "--stdin", "--json", stdin=b"one\n")
    assert json.loads(added.stdout) == {"file": str(file), "user": "ada", "done": "added"}
    before = file.read_text()
    assert "argon2id" in before
    assert "one" not in before.split("$")[0]
    assert "changed" in braidmq("passwd", file, "ada", "--stdin", stdin=b"two").stdout
    assert file.read_text() != before
    assert json.loads(in_process("passwd", file, "--list", "--json").stdout)["users"] == ["ada"]
    assert in_process("passwd", file, "ada", "--delete").returncode == 0
    assert in_process("passwd", file, "--list").stdout == ""
    missing = in_process("passwd", file, "ada", "--delete")
    assert missing.returncode == 1
    assert "no user 'ada'" in missing.stderr


def test_passwd_refuses_what_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "users.txt"
    assert in_process("passwd", file, "a:b", "--stdin").returncode == 2
    assert braidmq("passwd", file, "ada", "--stdin").returncode == 2
    assert "--stdin" in in_process("passwd", file, "ada").stderr
    assert in_process("passwd", file).returncode == 2
    assert braidmq("passwd", tmp_path / "none" / "users.txt", "ada", "--stdin", stdin=b"x").returncode == 1
    assert not file.exists()


@pytest.mark.parametrize(("second", "code"), [("pa55word", 0), ("other", 2)])
def test_passwd_asks_twice(tmp_path: Path, second: str, code: int) -> None:
    file = tmp_path / "users.txt"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*COMMAND, "passwd", str(file), "ada"])
    shown = b""
    answers = [(b"Password of ada: ", b"pa55word\n"), (b"Once more: ", second.encode() + b"\n")]
    try:
        while True:
            if answers and answers[0][0] in shown:
                os.write(terminal, answers.pop(0)[1])
            shown += os.read(terminal, 1024)
    except OSError:
        pass  # the process has ended, and its terminal with it
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert b"pa55word\r\n" not in shown
    assert file.exists() is (code == 0)
