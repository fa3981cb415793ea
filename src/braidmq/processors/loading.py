"""Finds a processor by what people call it: `path/to/file.py`, or `package.module`, with `:name` if there are several.

Loading a processor runs its file. So a broker leaves that to the worker, in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from braidmq.processors.processor import Processor, ProcessorError


def split_source(source: str) -> tuple[str, str]:
    """(file or module, name) of `file.py:name`; the name is empty if there is none."""
    path_or_module, colon, name = source.rpartition(":")
    return (path_or_module, name) if colon and name.isidentifier() else (source, "")


def is_file(path_or_module: str) -> bool:
    return path_or_module.endswith(".py") or "/" in path_or_module


def load_processor(source: str) -> Processor:
    """The processor that `source` names; a ProcessorError says why there is none."""
    path_or_module, name = split_source(source)
    found = processors_of(_module(path_or_module))
    if not found:
        raise ProcessorError(f"{path_or_module} has no processor: put @processor(topic=…, spool=…) over a function")
    if name:
        wanted = [one for key, one in found.items() if name in (key, one.name)]
        if not wanted:
            raise ProcessorError(f"{path_or_module} has no processor {name!r}, only {', '.join(found)}")
        return wanted[0]
    if len(found) > 1:
        raise ProcessorError(
            f"{path_or_module} has {len(found)} processors: say which, as in {path_or_module}:{next(iter(found))}"
        )
    return next(iter(found.values()))


def processors_of(module: ModuleType) -> dict[str, Processor]:
    """All processors of a module, by the name that they have there."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Processor)}


def _module(path_or_module: str) -> ModuleType:
    try:
        return _run_file(Path(path_or_module)) if is_file(path_or_module) else importlib.import_module(path_or_module)
    except ProcessorError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (path_or_module == error.name or path_or_module.startswith(f"{error.name}.")):
            raise ProcessorError(f"there is no module {path_or_module}: give a file as path/to/file.py") from None
        raise ProcessorError(f"{path_or_module} imports {error.name}, which is not installed here") from None
    except (Exception, SystemExit) as error:
        raise ProcessorError(
            f"{path_or_module} cannot be loaded: {type(error).__name__}: {error}{_line_note(error, path_or_module)}"
        ) from None


def _run_file(path: Path) -> ModuleType:
    """Runs a file as a module of its own. What lies beside it can be imported, as if it had been started itself."""
    if not path.is_file():
        raise ProcessorError(f"there is no file {path}")
    name = f"_processor_{path.stem}"  # not the stem alone: a file called json.py must not stand for another
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProcessorError(f"{path} is no Python file: its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _line_note(error: BaseException, path_or_module: str) -> str:
    """Where in the file it happened."""
    if isinstance(error, SyntaxError):
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path_or_module]
    return f" (line {lines[-1]})" if lines else ""
