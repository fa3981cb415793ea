"""The process of a component that runs on Spark: a query over the logs of brokers, until its standard input is closed.

It is no member of anything: Spark reads what its source has published from the logs, and publishes at the broker where
a message came from. By MQTT it says only how it does, as other instances do.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.cli.ending import Ending
from braidmq.cli.errors import CliError
from braidmq.cli.flow.instance import REPORT_S, SINCE, InstancePlan, source_of
from braidmq.cli.flow.notices import InstanceReport, report_topic
from braidmq.cli.mqtt_client.client import Disconnected, MqttClient
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.flows import Dataflow, FlowComponent, FlowError, read_flow
from braidmq.processors.processor import ProcessorError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from braidmq.pipeline.stateful import BatchCounts

LATEST: Final = "latest"
"""A query that has no checkpoint yet begins with what comes: what was before its start is not this flow's."""


class SparkInstance:
    def __init__(self, plan: InstancePlan, flow: Dataflow, component: FlowComponent) -> None:
        self._plan = plan
        self._flow = flow
        self._component = component
        options = ConnectionOptions(
            **plan.options,
            url=plan.url,
            client_id=f"flow-{flow.name}-{component.name}-{plan.number}",
            will_topic=report_topic(flow, component, plan.number),
            will_qos=1,
            will_retain=True,
        )
        self._client = MqttClient(options, "flow", reconnect=True)

    def run(self) -> None:
        from braidmq.cli.on_spark import in_our_words, in_thread, own_java, stop
        from braidmq.cli.process.spark_run import CHECKPOINTS, start_query
        from braidmq.pipeline.errors import from_spark
        from braidmq.pipeline.flow_component import portable_of

        assert self._plan.spark is not None
        portable = portable_of(self._flow, self._component, source_of(self._component, Path(self._plan.folder)), SINCE)
        given = self._plan.spark
        options = {"brokers": given.brokers, "startingOffsets": LATEST}
        options |= {} if given.token is None else {"token": given.token}
        folder = Path(self._plan.folder) / CHECKPOINTS / portable.name
        with in_our_words(), Ending() as ending, own_java():
            query = in_thread(lambda: start_query(portable, options, given.master, folder, delegated=False), ending)
            self._client.open()
            self._follow(query, ending)
            error = query.exception()
            stop(query, ending)
        if error is not None:
            raise CliError(from_spark(error).text)

    def _follow(self, query: StreamingQuery, ending: Ending) -> None:
        """Says how the query does, until it ends or is to."""
        from braidmq.pipeline.progress import MicroBatches
        from braidmq.pipeline.stateful import BatchCounts as Counts

        batches, done, at = MicroBatches(query), Counts(), time.monotonic()
        while query.isActive:
            before = done
            for one in batches.new():
                done += Counts.of(one)
            took_s, at = max(0.001, time.monotonic() - at), time.monotonic()
            self._report(done, (done.rows - before.rows) / took_s, (done.answers - before.answers) / took_s)
            if ending.wait(REPORT_S):
                return

    def _report(self, done: BatchCounts, rows_s: float, answers_s: float) -> None:
        while (event := self._client.next_event(0.0)) is not None:
            if isinstance(event, Disconnected):
                return  # it connects again by itself
        report = InstanceReport(
            self._component.name,
            self._plan.number,
            self._plan.site,
            received=done.rows,
            published=done.answers,
            received_s=round(rows_s, 3),
            published_s=round(answers_s, 3),
        )
        topic = report_topic(self._flow, self._component, self._plan.number)
        self._client.publish(topic, msgspec.json.encode(report), 0, True, None)


def _end_with_input() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=InstancePlan)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        flow = read_flow(plan.flow)
        SparkInstance(plan, flow, flow.component(plan.component)).run()
    except (FlowError, ProcessorError, CliError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
