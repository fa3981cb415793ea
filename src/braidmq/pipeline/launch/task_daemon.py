"""Spark's daemon where there are tasks and no tables (`braidmq.pipeline.context`): its workers need neither pandas nor
Arrow, and their start costs a tenth."""

from __future__ import annotations

from typing import Final

from braidmq.pipeline.launch.daemon import serve

NEEDED: Final = ("pyspark.worker", "braidmq.pipeline.trials.trial_process")

if __name__ == "__main__":
    serve(NEEDED)
