"""A processor that travels to Spark's workers: as the text of its file, since a function cannot always be pickled.

Each worker runs the text once and gets the same processor as the edge: same function, topic, spool and output.
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


class PortableProcessor(msgspec.Struct, frozen=True):
    """A processor as text. On workers that see `folder`, too, the files beside it can be imported."""

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
    def of(
        source: str, *, name: str | None = None, topic: str | None = None, spool: int | None = None
    ) -> PortableProcessor:
        """`source` as `load_processor` takes it; the rest overrides what it says. A ProcessorError says why not."""
        path_or_module, _ = split_source(source)
        loaded = load_processor(source)
        one = loaded.changed(name=name, topic=topic, spool=spool)
        module = _module_of(path_or_module)
        path = Path(path_or_module if is_file(path_or_module) else inspect.getsourcefile(module) or "")
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ProcessorError(
                f"the text of {path_or_module} cannot be read, and Spark's workers need it: {error}"
            ) from None
        [function] = [key for key, found in processors_of(module).items() if found is loaded][:1]
        folder = str(path.resolve().parent)
        return PortableProcessor(
            text, str(path), folder, function, one.name, one.topic, one.spool, one.output, one.time_limit_s
        )

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> PortableProcessor:
        return msgspec.json.decode(text, type=PortableProcessor)

    def load(self) -> Processor:
        """The processor, in a worker; a ProcessorError says why it cannot be had there."""
        return _load(self)


def _module_of(path_or_module: str) -> ModuleType:
    name = f"_processor_{Path(path_or_module).stem}" if is_file(path_or_module) else path_or_module
    return sys.modules[name]


@lru_cache(LOADED_MAX)
def _load(portable: PortableProcessor) -> Processor:
    name = f"_portable_{hashlib.sha256(portable.text.encode()).hexdigest()[:16]}"
    if Path(portable.folder).is_dir() and portable.folder not in sys.path:
        sys.path.append(portable.folder)
    module = ModuleType(name)
    module.__file__ = portable.file
    sys.modules[name] = module
    try:
        exec(compile(portable.text, portable.file, "exec"), vars(module))  # noqa: S102 - it is the user's own program
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == portable.file]
        where = f" (line {lines[-1]})" if lines else ""
        raise ProcessorError(
            f"{portable.file} cannot be loaded by a worker of Spark: {type(error).__name__}: {error}{where}. "
            "What it imports has to be installed there"
        ) from None
    found = processors_of(module)[portable.function]
    return found.changed(
        name=portable.name,
        topic=portable.topic,
        spool=portable.spool,
        output=portable.output,
        time_limit_s=portable.time_limit_s,
    )
