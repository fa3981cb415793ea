"""The command itself: its start, its help, its colours, and what it says to wrong usage."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.cli.commands import braidmq, environment, in_process


def test_version_tells_what_is_installed_and_loads_little() -> None:
    script = (
        "import sys; sys.argv = ['braidmq', 'version', '--json']\n"
        "from braidmq.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sorted({'asyncio', 'paho', 'pydantic', 'rich', 'ssl', 'braidmq.broker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    first, loaded = done.stdout.splitlines()
    assert set(json.loads(first)) == {"braidmq", "python", "uvloop", "msgspec"}
    assert loaded == ""


@pytest.mark.parametrize("command", ["", "up", "pub", "sub", "passwd", "bench", "version"])
def test_help_teaches_by_examples(command: str) -> None:
    done = in_process(*filter(None, [command]), "--help")
    assert done.returncode == 0
    _, examples = done.stdout.split("Examples")
    assert len(re.findall(rf"^ .*braidmq {command}", examples, re.MULTILINE)) >= 3


def test_wrong_usage_is_told_without_a_traceback() -> None:
    for arguments in (["pub", "--no-such-option"], ["no-such-command"], ["sub", "a", "--qos", "3"]):
        done = braidmq(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_colours_can_be_forced_and_forbidden() -> None:
    arguments = ["sub", "a", "-p", "1"]
    assert "\x1b[" in in_process(*arguments, "--color", "always").stderr
    assert "\x1b[" not in in_process(*arguments, "--color", "never", env={"FORCE_COLOR": "1"}).stderr
    assert "\x1b[" not in in_process(*arguments).stderr
