"""This package as one file, for executors that do not have it. It is pure Python, and so it runs from a zip."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import braidmq


@cache
def zipped() -> Path:
    """The zip; made once a process, and removed at its end."""
    root = Path(braidmq.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="braidmq-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "braidmq.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(root.rglob("*.py")):
            archive.write(source, source.relative_to(root.parent))
    return path
