"""PySpark as it is installed, and not out of the zip that Spark puts before it on the path of its Python processes.

Out of a zip every module is compiled anew at each start, which takes longer than all else that such a process does
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
    others = [place for place in sys.path if not place.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", others) is None:
        return
    zips = Path(installed.origin).resolve().parent / ZIPS
    sys.path[:] = [place for place in sys.path if not (place.endswith(".zip") and Path(place).resolve().parent == zips)]
