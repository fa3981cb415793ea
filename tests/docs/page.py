"""Runs a page of Markdown from its first block to its last, as a reader would: `python -m tests.docs.page PAGE FOLDER`.

- Shell: a command line must end with exit code 0, and print what the page shows; `…` on the page stands for anything,
  alone in a line for any lines. What goes on until Ctrl-C (brokers, subscribers, streams) goes on in the background,
  once it is ready, until the page ends; then it must end in good order on Ctrl-C.
- A publication that a subscriber of the page waits for must come there.
- A block of console output without a command is what the last command in the background goes on to print.
- Python is executed block by block in one program. A block that begins with the name of a file is written there.
- TOML is read and checked as the configuration of a broker.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from braidmq.config.load import load
from braidmq.flows import load_flow
from braidmq.mqtt.topics import matches
from tests.docs import world
from tests.docs.markdown import ROOT, Block, Command, blocks

READY_S: Final = 120.0
OUTPUT_S: Final = float(os.environ.get("PAGE_OUTPUT_S", 300.0))
"""Long enough for Spark to start on a busy machine, and for buses to drive."""
COMMAND_S: Final = 300.0
END_S: Final = 120.0
POLL_S: Final = 0.05
AGAIN_S: Final = 1.0
"""A publication that has not come after this time is sent again: its subscriber may not have been there yet."""

_GOES_ON: Final = re.compile(
    r"^make run\b|^tail -f"
    r"|^\S*braidmq (up|demo|sub|flow run|process run|process spark|pipeline run (?!exhaust))\b(?!.*--(once|log)\b)"
)
_READY: Final = ("Ctrl-C ends", '"event":"ready"')
"""What such commands say once they are ready; subscribers only where a person reads it."""


class PageError(AssertionError):
    """What a reader of the page would complain about."""


class Running:
    """A command in the background."""

    def __init__(self, command: Command, folder: Path, number: int) -> None:
        self.command = command
        self.path = folder / f".output-{number}"
        with self.path.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f"{command.text}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self.path.read_text(errors="replace")

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command.text, comments=True)

    @property
    def is_talkative(self) -> bool:
        return self.words[1:2] != ["sub"] and self.words[0] != "tail"

    def check(self) -> None:
        """It has not failed."""
        if self.process.poll():
            raise PageError(f"`{self.command.text}` has ended with {self.process.returncode}:\n{self.printed}")

    def wait_for(self, is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while not is_so():
            self.check()
            if time.monotonic() > ends_at:
                raise PageError(f"`{self.command.text}`: {what} did not come:\n{self.printed}")
            time.sleep(POLL_S)

    def is_connected(self) -> bool:
        """Whether it has a connection, or had one and got what it wanted."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        established = {f"socket:[{words[9]}]" for words in lines if words[3] == "01"}
        try:
            opened = {os.readlink(each) for each in Path(f"/proc/{self.process.pid}/fd").iterdir()}
        except OSError:
            opened = set()
        return bool(opened & established) or self.process.poll() == 0

    def subscribes(self, topic: str) -> bool:
        """Whether it prints what is published on the topic."""
        words = self.words
        if words[1:2] != ["sub"] or "|" in words:
            return False
        return any(matches(word, topic) for word in words[2:] if not word.startswith("-"))

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise PageError(f"`{self.command.text}` does not end on Ctrl-C:\n{self.printed}") from None
        timed_out = 4 if "-W" in self.words else 0  # the page says so: "within 5 seconds"
        if code not in (0, timed_out, 130, -signal.SIGINT, 2 if self.words[0] == "make" else 0):
            raise PageError(f"`{self.command.text}` has ended with {code}:\n{self.printed}")
        if "Traceback" in self.printed:
            raise PageError(f"`{self.command.text}`:\n{self.printed}")


class Page:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[Running] = []
        self._started = 0
        self._namespace: dict[str, Any] = {"__name__": "__main__"}

    def run(self, found: list[Block]) -> None:
        try:
            for block in found:
                self._run(block)
            self._stop()
        except BaseException:
            for running in self._running:
                print(f"--- {running.command.text}\n{running.printed[-4000:]}")
            raise

    def _run(self, block: Block) -> None:
        match block.kind:
            case "stop":
                self._stop()
            case "shell":
                for command in block.commands:
                    if block.is_run(command):
                        self._run_command(command)
                        if block.is_each_alone:
                            self._stop()
            case "output":
                if not block.marks:
                    self._expect(self._running[-1], block.text.splitlines(), block.line)
            case "toml" | "python" if block.file_name:
                Path(block.file_name).write_text(block.text)
                if block.kind == "toml" and not block.marks:
                    load(block.file_name, {}, {})
            case "toml" if not block.marks:
                Path(".block.toml").write_text(block.text)
                if "[[component]]" in block.text:
                    load_flow(Path(".block.toml"))
                else:
                    load(".block.toml", {}, {})
            case "python" if not block.marks:
                print(f">>> line {block.line}", flush=True)
                lines = "\n" * (block.line - 1)
                exec(compile(lines + block.text, f"line {block.line}", "exec"), self._namespace)

    def _stop(self) -> None:
        while self._running:
            self._running.pop().end()

    def _run_command(self, command: Command) -> None:
        print(f"$ {command.text}", flush=True)
        if command.text.startswith("export "):
            name, _, value = command.text.removeprefix("export ").partition("=")
            os.environ[name] = value
            return
        if _GOES_ON.match(command.text) and not command.text.endswith("&"):
            self._start(command)
            return
        began = time.monotonic()
        self._run_once(command)
        words = shlex.split(command.text, comments=True)
        if words[1:2] == ["pub"] and "|" not in words:
            self._wait_until_received(command, words)
        print(f"  ({time.monotonic() - began:.1f} s)", flush=True)

    def _run_once(self, command: Command) -> None:
        ends_at = time.monotonic() + READY_S
        while True:
            try:
                done = subprocess.run(
                    ["bash", "-c", f"set -o pipefail; {command.text}"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=COMMAND_S,
                )
            except subprocess.TimeoutExpired as error:
                raise PageError(f"line {command.line}: `{command.text}` goes on and on:\n{error.stdout!r}") from None
            is_ring = shlex.split(command.text, comments=True)[:2] == ["braidmq", "ring"]
            if not (is_ring and done.returncode == 1 and time.monotonic() < ends_at):
                break
            time.sleep(AGAIN_S)  # a broker may be on its way into the braid
        printed = done.stdout + done.stderr
        if done.returncode or "Traceback" in printed:
            raise PageError(f"line {command.line}: `{command.text}` ended with {done.returncode}:\n{printed}")
        if command.output and not is_shown(command.output, printed):
            raise PageError(f"line {command.line}: `{command.text}` printed something else:\n{printed}")

    def _start(self, command: Command) -> None:
        running = Running(command, self._folder, self._started)
        self._started += 1
        self._running.append(running)
        if running.is_talkative:
            running.wait_for(lambda: any(word in running.printed for word in _READY), "that it is ready", READY_S)
        elif "|" not in running.words:
            running.wait_for(running.is_connected, "a connection", READY_S)
        if command.output:
            self._expect(running, command.output, command.line)

    def _expect(self, running: Running, lines: list[str], line: int) -> None:
        def is_so() -> bool:
            for each in self._running:
                each.check()
            return is_shown(lines, running.printed)

        running.wait_for(is_so, f"what line {line} and the next ones show", OUTPUT_S)

    def _wait_until_received(self, command: Command, words: list[str]) -> None:
        """Each subscriber that waits for it prints it."""
        topic = words[next(number for number in range(2, len(words)) if "/" in words[number])]
        ends_at = time.monotonic() + READY_S
        for running in [one for one in self._running if one.subscribes(topic)]:
            while topic not in running.printed:
                if time.monotonic() > ends_at:
                    raise PageError(f"line {command.line}: `{running.command.text}` did not get `{command.text}`")
                time.sleep(AGAIN_S)
                if topic not in running.printed:
                    self._run_once(command)


def is_shown(lines: list[str], printed: str) -> bool:
    """Whether an output contains the lines of a page, one after another.

    `…` is anything, alone in a line any lines. A number with a decimal point was measured: it may differ.
    """
    expression = ""
    for line in lines:
        if line.strip() == "…":
            expression += r"(?:[^\n]*\n)*?"
            continue
        for text, wild in re.findall(r"(.*?)(…|(?<![\d.])\d+\.\d+(?![\d.])|$)", line.rstrip()):
            expression += re.escape(text) + {"…": r"[^\n]*", "": ""}.get(wild, r"\d+\.\d+")
        expression += r"[ \t]*\n"
    return re.search(rf"^{expression}", printed if printed.endswith("\n") else f"{printed}\n", re.MULTILINE) is not None


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    found = list(blocks((ROOT / name).read_text()))
    sys.path.insert(0, str(ROOT))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not ignored, as by what a script starts with `&`
    world.enter(folder)
    Page(folder).run(found)
    print("all done", flush=True)
    os._exit(0)  # Spark's threads do not matter any more


if __name__ == "__main__":
    main()
