"""Small scripts that run a program with one of its arguments changed: kept in the user's cache folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path


def write(kind: str, program: str, script: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder whose `bin/<program>` is the script; written once for each text. An OSError if it cannot be."""
    root = environ.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "braidmq"
    folder = cache / f"{kind}-{sha256(script.encode()).hexdigest()[:16]}"
    path = folder / "bin" / program
    if not path.exists() or path.read_text() != script:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Other processes may look for it at the same time: they find all of it, or nothing.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(script)
        os.chmod(file.name, 0o755)  # noqa: S103 - a program
        os.replace(file.name, path)
    return folder
