"""Passwords in a file, one `user:hash` a line, hashed with argon2id; checked off the event loop, within bounds.

A hash costs tens of milliseconds and megabytes on purpose. So a few threads check passwords, a bounded number of
clients waits for them, and the rest is told that the server is busy. What was right once is remembered under a keyed
digest, so that thousands of clients that come back at once cost next to nothing. An unknown user costs as much as a
wrong password does: time does not tell which names exist.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import stat
import threading
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Final

import argon2
from argon2.exceptions import VerifyMismatchError

from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Refusal, Verdict

CHECKS_RUNNING_MAX = 2
"""Passwords that are hashed at the same time, a thread each."""
CHECKS_MAX = 256
"""Passwords that are hashed or wait for it; clients above are told that the server is busy."""
REMEMBERED_MAX = 4_096
"""Right passwords that are remembered, the latest ones."""
USER_BYTES_MAX = 65_535
"""An MQTT user name is no longer than this (MQTT 5 §1.5.4)."""

# 19 MiB and two passes: enough against a stolen file, and a site's small computer can do it while it serves clients.
HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

_HASH: Final = re.compile(r"\$argon2id\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
_WRONG: Final = Refusal(Reason.BAD_USER_NAME_OR_PASSWORD)
_BUSY: Final = Refusal(Reason.SERVER_BUSY, "too many clients are being authenticated")


class PasswordFileError(ValueError):
    """A password file, or what should be written to it, cannot be used; the text says why."""


class PasswordFile:
    """The users of one password file. To read the file again, load it again: what was remembered is then forgotten."""

    def __init__(
        self,
        hashes: Mapping[str, str],
        *,
        hasher: argon2.PasswordHasher = HASHER,
        checks_running_max: int = CHECKS_RUNNING_MAX,
        checks_max: int = CHECKS_MAX,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        self._hashes = dict(hashes)
        self._hasher = hasher
        self._hash_of_nobody = _hash_as_costly(self._hashes, hasher)
        self._threads = ThreadPoolExecutor(checks_running_max, thread_name_prefix="braidmq-password")
        self._places = threading.BoundedSemaphore(checks_max)
        self._remembered = _Remembered(remembered_max)

    @classmethod
    def load(cls, path: str) -> PasswordFile:
        return cls(read_password_file(path))

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        """A name and a password are for this file to judge; a name that is not in it is for the next authenticator."""
        if credentials.username is None or credentials.password is None:
            return None
        user, password = credentials.username, credentials.password
        known = self._hashes.get(user)
        if known is not None and self._remembered.holds(self._remembered.digest(user, password, known)):
            return Identity(user)
        return self.verify(user, password)

    async def verify(self, user: str, password: bytes) -> Verdict:
        if not self._places.acquire(blocking=False):
            return _BUSY
        check: Future[bool] = self._threads.submit(self._check, user, password)
        # There is room again when the thread is done, or never began: not when the client has given up.
        check.add_done_callback(lambda _: self._places.release())
        right = await asyncio.wrap_future(check)
        if right:
            return Identity(user)
        return _WRONG if user in self._hashes else None

    def _check(self, user: str, password: bytes) -> bool:
        """Runs in a thread. Looks into the memory again: the same password may have been checked while this waited."""
        known = self._hashes.get(user)
        digest = self._remembered.digest(user, password, known or "")
        if known is not None and self._remembered.holds(digest):
            return True
        try:
            self._hasher.verify(known or self._hash_of_nobody, password)
        except VerifyMismatchError:
            return False
        if known is None:
            return False
        self._remembered.add(digest)
        return True


class _Remembered:
    """Digests of the latest right passwords. Their key is made anew each time: they say nothing outside the process."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._key = secrets.token_bytes(32)
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def digest(self, user: str, password: bytes, known: str) -> bytes:
        name = user.encode()
        text = b"%d:%d:%b%b%b" % (len(name), len(password), name, password, known.encode())
        return blake2b(text, key=self._key, digest_size=32).digest()

    def holds(self, digest: bytes) -> bool:
        with self._lock:
            if digest not in self._digests:
                return False
            self._digests.move_to_end(digest)
            return True

    def add(self, digest: bytes) -> None:
        with self._lock:
            self._digests[digest] = None
            while len(self._digests) > self._size_max:
                self._digests.popitem(last=False)


def _hash_as_costly(hashes: Mapping[str, str], hasher: argon2.PasswordHasher) -> str:
    """A hash that no password has, as costly as most in the file."""
    costs = Counter(
        (cost.time_cost, cost.memory_cost, cost.parallelism, cost.salt_len, cost.hash_len)
        for cost in map(argon2.extract_parameters, hashes.values())
    )
    if costs:
        (time_cost, memory_cost, parallelism, salt_len, hash_len), _ = costs.most_common(1)[0]
        hasher = argon2.PasswordHasher(time_cost, memory_cost, parallelism, hash_len, salt_len)
    return hasher.hash(secrets.token_bytes(32))


# The file


def read_password_file(path: str) -> dict[str, str]:
    """User names and hashes; PasswordFileError names the line that is wrong."""
    return {user: known for user, known in _entries(path, _read(path)) if known}


def users(path: str) -> list[str]:
    """The names in the file, in its order."""
    return list(read_password_file(path))


def set_password(path: str, user: str, password: str | bytes, *, hasher: argon2.PasswordHasher = HASHER) -> bool:
    """Add a user, or give it another password; the file is made if there is none. True if the user is new."""
    problem = user_problem(user)
    if problem:
        raise PasswordFileError(f"the user name {user!r} cannot be used: {problem}")
    if not password:
        raise PasswordFileError("the password is empty; choose one")
    line = f"{user}:{hasher.hash(password)}"
    with _changing(path) as lines:
        for index, (known_user, _) in enumerate(_entries(path, lines)):
            if known_user == user:
                lines[index] = line
                return False
        lines.append(line)
        return True


def delete_user(path: str, user: str) -> None:
    """Take a user out of the file; PasswordFileError if it is not in it."""
    with _changing(path) as lines:
        names = [name for name, _ in _entries(path, lines)]
        if not user or user not in names:
            raise PasswordFileError(f"{path} has no user {user!r}")
        del lines[names.index(user)]


def user_problem(user: str) -> str:
    """Why a name cannot stand in a password file, or "" if it can."""
    if not user:
        return "it is empty"
    if ":" in user:
        return 'it contains ":", which ends the name in the file'
    if user.startswith("#"):
        return 'it begins with "#", which marks a comment in the file'
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in user):
        return "it contains a control character or a line break"
    if len(user.encode()) > USER_BYTES_MAX:
        return f"it is longer than {USER_BYTES_MAX} bytes"
    return ""


def _read(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            text = file.read()
    except OSError as error:
        raise PasswordFileError(f"cannot read the password file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PasswordFileError(f"{path}, line {line}: is not UTF-8 text") from error
    return text.removesuffix("\n").split("\n") if text else []


def _entries(path: str, lines: list[str]) -> list[tuple[str, str]]:
    """Name and hash of each line; both are "" for a line that is empty or a comment."""
    entries: list[tuple[str, str]] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            entries.append(("", ""))
            continue
        user, colon, known = line.partition(":")
        known = known.strip()
        problem = user_problem(user) if colon else 'expected "user:hash", and there is no ":"'
        if not problem and not _HASH.fullmatch(known):
            problem = f'the hash of user {user!r} is not one of argon2id; make it with "braidmq passwd"'
        if not problem and user in lines_of:
            problem = f"user {user!r} is already in line {lines_of[user]}"
        if problem:
            raise PasswordFileError(f"{path}, line {number}: {problem}")
        lines_of[user] = number
        entries.append((user, known))
    return entries


@contextmanager
def _changing(path: str) -> Iterator[list[str]]:
    """The file's lines, to change; they replace the file in one step when the block ends without an error.

    A lock on the folder keeps two changes at once from undoing each other. A crash leaves the old
    file or the new one.
    """
    target = os.path.realpath(path)
    try:
        folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PasswordFileError(f"cannot open the folder of {path}: {error.strerror}") from error
    temporary = f"{target}.{secrets.token_hex(4)}.new"
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines = _read(target) if os.path.exists(target) else []
        yield lines
        _write(temporary, lines, like=target)
        os.replace(temporary, target)
        os.fsync(folder)
    except OSError as error:
        raise PasswordFileError(f"cannot write the password file {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)
        os.close(folder)


def _write(path: str, lines: list[str], like: str) -> None:
    """Only the owner may read the file. The owner stays who it was, so that root can change a broker's file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
        with suppress(FileNotFoundError, PermissionError):
            before = os.stat(like)
            os.fchown(descriptor, before.st_uid, before.st_gid)
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        os.fsync(descriptor)
