"""PySpark as it is installed, and not from the zip that Spark puts before it on the path of its Python processes.

From a zip every module is compiled anew at each start, which takes longer than everything else that such a process does
before its first row.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

ZIPS: Final = "python/lib"
"""Where an installed PySpark has the zips, below its folder."""


def prefer_installed() -> None:
    """Takes the zips of an installed PySpark off the path: it has the same modules. Those of another Spark stay."""
    others = [entry for entry in sys.path if not entry.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", others) is None:
        return
    zips = Path(installed.origin).resolve().parent / ZIPS
    sys.path[:] = [entry for entry in sys.path if not (entry.endswith(".zip") and Path(entry).resolve().parent == zips)]
