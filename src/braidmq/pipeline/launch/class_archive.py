"""Spark's classes as Java has laid them out: an archive that one start on a machine writes for all later ones.

Reading, checking and laying out the classes of Spark is most of what its start costs. Java can write down the result
when it ends (`-XX:ArchiveClassesAtExit`) and use it the next time; that halves the CPU time of a start. It checks by
itself whether an archive is of the same Java and the same jars, and does without it if not.

There are two: of a context without tables, which its first start writes, and of a session with them, which is larger
and takes longer to write: `braidmq doctor --spark` does that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final, Literal

from braidmq.pipeline.launch.java import Java

ARCHIVE_END_S: Final = 120.0
"""How long Java may take to end when it writes the archive of its classes: seconds, but many on a busy machine. Killed
before that, it leaves no archive, and later starts take as long as this one."""
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""No messages about an archive that does not fit."""


class ClassArchive:
    """Made for one start of Spark: `options` before it, `end_java` at its end."""

    def __init__(self, java: Java, kind: Literal["context", "session"], *, writes: bool) -> None:
        """`writes`: an archive is written if there is none yet."""
        import pyspark

        told = f"{java.home} {java.version} {pyspark.__version__} {pyspark.__file__} {kind}"
        self._path = java.home / f"spark-{hashlib.sha256(told.encode()).hexdigest()[:16]}.jsa"
        self._new = self._path.with_suffix(f".{os.getpid()}")
        self.is_new = writes and not self._path.exists() and os.access(java.home, os.W_OK) and _is_own(java.home)
        if self.is_new:
            _sweep(java.home)

    @property
    def options(self) -> str:
        """For Java; nothing if there is no archive and none can be written."""
        if self.is_new:
            return f"{QUIET} -XX:ArchiveClassesAtExit={self._new}"
        return f"{QUIET} -XX:SharedArchiveFile={self._path}" if self._path.exists() else ""

    def end_java(self) -> None:
        """Ends the Java that was given the options. If it has written an archive, later starts use it."""
        from braidmq.pipeline.launch.gateway import JAVA_END_S, end_java

        if end_java(ARCHIVE_END_S if self.is_new else JAVA_END_S):
            self.keep()

    def keep(self) -> None:
        """The archive is complete now: it is used from the next start on."""
        if self.is_new:
            with contextlib.suppress(OSError):
                os.replace(self._new, self._path)


def _sweep(home: Path) -> None:
    """Removes what was left by a Java that was killed while it wrote."""
    for path in home.glob("spark-*.[0-9]*"):
        try:
            os.kill(int(path.suffix[1:]), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (OSError, ValueError):
            continue


def _is_own(home: Path) -> bool:
    """Whether this is a folder that BraidMQ has made, and not a Java's own."""
    return home.name.startswith("java-") and home.parent.name == "braidmq"
