"""What the log of publications needs, beyond what single values say."""

from __future__ import annotations

import os
from importlib.util import find_spec

from braidmq.config.problems import Findings
from braidmq.config.settings import LogConfig
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter


def check_log(log: LogConfig, findings: Findings) -> None:
    for number, topic_filter in enumerate(log.topics):
        key = f"log.topics[{number}]"
        try:
            check_filter(topic_filter)
        except PacketError as error:
            findings.add(key, topic_filter, f"expected a topic filter: {error.text}")
        else:
            if topic_filter.startswith("$"):
                findings.add(key, topic_filter, "expected another topic: those that begin with $ are not kept")
    if log.topics and (find_spec("pyarrow") is None or find_spec("numpy") is None):
        expected = 'the log needs pyarrow and numpy, which are not installed: pip install "braidmq[log]"'
        findings.add("log.topics", list(log.topics), expected)
    if log.folder is not None and os.path.exists(log.folder) and not os.path.isdir(log.folder):
        findings.add("log.folder", log.folder, "expected a folder, and this is a file")
