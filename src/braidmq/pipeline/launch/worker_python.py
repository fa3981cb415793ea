"""The Python that Spark's workers on this machine run on: this one, and not any `python3` of the PATH.

A wrapper script replaces two modules that Spark starts with it. Java hangs up on workers that had nothing to do for a
minute, and on all workers when it ends; a worker then tries to say why it ends, which fails on a Unix socket with no
peer, and Spark's daemon prints the traceback: `launch.daemon` does not. And the process that plans a stream has to
connect within ten seconds, however busy the machine is: see `launch.planner`.
"""

from __future__ import annotations

import shlex
import sys
from typing import Final

from braidmq.pipeline.launch import wrapper_script

SCRIPT: Final = """\
#!/bin/sh
# Written by BraidMQ: Python for the workers of Spark, with a daemon and a runner of its own. It may be deleted.
previous=
for argument do
  shift
  case "$previous $argument" in
    "-m pyspark.daemon") argument=braidmq.pipeline.launch.daemon ;;
    "-m pyspark."*_runner) set -- "$@" braidmq.pipeline.launch.planner ;;
  esac
  previous=$argument
  set -- "$@" "$argument"
done
exec {python} "$@"
"""


def executable() -> str:
    """What Spark is given as PYSPARK_PYTHON."""
    try:
        folder = wrapper_script.write("python", "python", SCRIPT.format(python=shlex.quote(sys.executable)))
    except OSError:
        return sys.executable  # it will do, with some noise
    return str(folder / "bin" / "python")
