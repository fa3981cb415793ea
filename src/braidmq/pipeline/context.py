"""A SparkContext alone, without SQL: for tasks without tables. It costs a third of what a session does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from braidmq.pipeline import package
from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.launch import java
from braidmq.pipeline.launch.class_archive import ClassArchive
from braidmq.pipeline.session import defaults, is_local, set_environment, starting

if TYPE_CHECKING:
    from pyspark import SparkContext

DAEMON: Final = "spark.python.daemon.module"
TASK_DAEMON: Final = "braidmq.pipeline.launch.task_daemon"
UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
"""They are for many short tasks; here there are few."""


@contextmanager
def context(name: str, master: str) -> Iterator[SparkContext]:
    """On any master but Spark Connect; a PipelineError says why there is none. Java has ended when it is left."""
    try:
        from pyspark import SparkConf
    except ImportError as error:
        raise MissingExtra(error.name) from None
    from braidmq.pipeline.launch.gateway import start_context

    found = java.find()
    set_environment(master, found, sys.executable)
    settings = SparkConf().setAppName(name).setMaster(master)
    archive = ClassArchive(found, "context", writes=True)
    settings.setAll([*defaults(master, quick=True, java_options=archive.options).items()])
    settings.set(UNIX_SOCKETS, "false")
    if is_local(master):
        settings.set(DAEMON, TASK_DAEMON)
    with _without_numpy():
        with starting(master):
            made = start_context(settings)
        try:
            if not is_local(master):
                made.addPyFile(str(package.zipped()))
            yield made
        finally:
            made.stop()
            archive.end_java()


@contextmanager
def _without_numpy() -> Iterator[None]:
    """To find numpy values on their way to Java, Spark imports its tests, and pandas with them. Here there are none."""
    from py4j.protocol import INPUT_CONVERTER
    from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

    known = INPUT_CONVERTER[:]
    INPUT_CONVERTER[:] = [one for one in known if not isinstance(one, NumpyArrayConverter | NumpyScalarConverter)]
    try:
        yield
    finally:
        INPUT_CONVERTER[:] = known
