"""Message processors on Spark: a stateful streaming query over the brokers' logs.

    query = start(spark, PortableProcessor.of("alerts.py"), {"brokers": "http://127.0.0.1:9883"}, "state/alerts")

`query` is the stream and its driver, `running` what a task does, `spools` and `snapshots` its state; `publishing` sends
answers to the brokers, `delegation` asks brokers what their edges leave to Spark.
"""

from braidmq.pipeline.stateful.query import BatchCounts, answers, snapshot_folder, start

__all__ = ["BatchCounts", "answers", "snapshot_folder", "start"]
