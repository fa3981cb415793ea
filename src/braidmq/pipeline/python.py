"""The Python that Spark's workers on this machine run on: this one, and not any `python3` of the PATH.

A shim changes two things that Spark starts with it. Java hangs up on workers that had nothing to do for a minute, and
at its end; a worker then tries to say why it ends; on a Unix socket, with nobody at the other end, that fails, and
Spark's daemon prints the traceback: `braidmq.pipeline.daemon` does not. And what plans a stream has to be there in ten
seconds, however busy the machine is: see `braidmq.pipeline.runner`.
"""

from __future__ import annotations

import shlex
import sys
from typing import Final

from braidmq.pipeline import shim

SCRIPT: Final = """\
#!/bin/sh
# Written by BraidMQ: Python for the workers of Spark, with a daemon and a runner of its own. It may be deleted.
previous=
for argument do
  shift
  case "$previous $argument" in
    "-m pyspark.daemon") argument=braidmq.pipeline.daemon ;;
    "-m pyspark."*_runner) set -- "$@" braidmq.pipeline.runner ;;
  esac
  previous=$argument
  set -- "$@" "$argument"
done
exec {python} "$@"
"""


def executable() -> str:
    """What Spark is given as PYSPARK_PYTHON."""
    try:
        folder = shim.write("python", "python", SCRIPT.format(python=shlex.quote(sys.executable)))
    except OSError:
        return sys.executable  # it will do, with some noise
    return str(folder / "bin" / "python")
