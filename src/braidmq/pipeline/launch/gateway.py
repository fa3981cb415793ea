"""The Java process that Spark runs in: kept apart from signals that are meant for Python, and ended in order.

Ctrl-C, and `kill` with a group, reach all processes of the group at once. A Java that ends by itself then breaks off
what Python is about to end in good order, and prints tracebacks. So it has a group of its own. It never outlives
Python: its standard input is a pipe from Python, and when that is closed, Java ends.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from typing import Any, Final

from braidmq.pipeline.errors import MissingExtra

try:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
except ImportError as error:
    raise MissingExtra(error.name) from None

JAVA_END_S: Final = 20.0
"""How long Java may take to end."""


def start_context(settings: SparkConf, *, own_group: bool = True) -> SparkContext:
    """A SparkContext, and Java if this process has none yet; with `own_group` in a process group of its own."""
    gateway = None
    if SparkContext._gateway is None:
        launch: Callable[..., Any] = launch_gateway
        gateway = launch(settings, {"process_group": 0} if own_group else {})
    return SparkContext(conf=settings, gateway=gateway)


def silence() -> None:
    """Java logs nothing more: what is broken off at the end is no error."""
    context = SparkContext._active_spark_context
    if context is None:
        return
    with contextlib.suppress(Exception):  # it may have ended already
        context.setLogLevel("OFF")
        java: Any = context._jvm.java  # type: ignore[union-attr]
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def end_java(within_s: float = JAVA_END_S) -> bool:
    """Ends the Java of this process, which would end a moment after it; returns whether it ended by itself."""
    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return False
    with contextlib.suppress(Exception):
        gateway.shutdown()
    with contextlib.suppress(OSError, ValueError):
        process.stdin.close()
    SparkContext._gateway = SparkContext._jvm = None
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
