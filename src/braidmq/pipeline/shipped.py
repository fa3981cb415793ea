"""A processor on its way to Spark's workers: the text of its file, since a function cannot always be pickled.

Each worker runs the text once, and has the same processor as the edge: same function, topic, spool and output.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from braidmq.processors.loading import is_file, load_processor, processors_of, split_source
from braidmq.processors.processor import Processor, ProcessorError

LOADED_MAX: Final = 8
"""Processors that a worker keeps loaded."""


class Shipped(msgspec.Struct, frozen=True):
    """Where `folder` is there for a worker, too, what lies beside the file can be imported."""

    text: str
    file: str
    folder: str
    function: str
    """What the processor is called in its file."""
    name: str
    topic: str
    spool: int
    output: str | None
    time_limit_s: float

    @staticmethod
    def of(source: str, *, name: str | None = None, topic: str | None = None, spool: int | None = None) -> Shipped:
        """`source` as `load_processor` takes it; the others go over what it says. A ProcessorError says why not."""
        place, _ = split_source(source)
        loaded = load_processor(source)
        one = loaded.changed(name=name, topic=topic, spool=spool)
        path = Path(place if is_file(place) else inspect.getsourcefile(sys.modules[place]) or "")
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ProcessorError(f"the text of {place} cannot be read, and Spark's workers need it: {error}") from None
        [function] = [key for key, found in processors_of(_module_of(place)).items() if found is loaded][:1]
        folder = str(path.resolve().parent)
        return Shipped(text, str(path), folder, function, one.name, one.topic, one.spool, one.output, one.time_limit_s)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Shipped:
        return msgspec.json.decode(text, type=Shipped)

    def load(self) -> Processor:
        """The processor, in a worker; a ProcessorError says why it cannot be had there."""
        return _load(self)


def _module_of(place: str) -> ModuleType:
    return sys.modules[f"_processor_{Path(place).stem}" if is_file(place) else place]


@lru_cache(LOADED_MAX)
def _load(shipped: Shipped) -> Processor:
    name = f"_shipped_{hashlib.sha256(shipped.text.encode()).hexdigest()[:16]}"
    if Path(shipped.folder).is_dir() and shipped.folder not in sys.path:
        sys.path.append(shipped.folder)
    module = ModuleType(name)
    module.__file__ = shipped.file
    sys.modules[name] = module
    try:
        exec(compile(shipped.text, shipped.file, "exec"), vars(module))  # noqa: S102 - it is the user's own program
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == shipped.file]
        where = f" (line {lines[-1]})" if lines else ""
        raise ProcessorError(
            f"{shipped.file} cannot be loaded by a worker of Spark: {type(error).__name__}: {error}{where}. "
            "What it imports has to be installed there"
        ) from None
    found = processors_of(module)[shipped.function]
    return found.changed(
        name=shipped.name,
        topic=shipped.topic,
        spool=shipped.spool,
        output=shipped.output,
        time_limit_s=shipped.time_limit_s,
    )
