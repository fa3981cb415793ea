"""Spark's Python processes take PySpark from where it is installed, unless their Spark is another one."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from braidmq.pipeline.launch.installed_pyspark import prefer_installed

ZIPS = Path(pyspark.__file__).parent / "python" / "lib"


def test_only_the_zips_of_the_installed_one_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = [str(ZIPS / "pyspark.zip"), *map(str, ZIPS.glob("py4j-*.zip"))]
    others = [str(tmp_path / "python" / "lib" / "pyspark.zip"), str(tmp_path / "braidmq.zip")]
    rest = list(sys.path)
    monkeypatch.setattr(sys, "path", [*own, *others, *rest])
    prefer_installed()
    assert len(own) == 2
    assert sys.path == [*others, *rest]


def test_where_it_is_not_installed_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = [str(ZIPS / "pyspark.zip"), str(tmp_path)]
    monkeypatch.setattr(sys, "path", list(path))
    prefer_installed()
    assert sys.path == path
