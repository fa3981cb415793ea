"""The options of the source: what they mean, and what cannot be meant."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from braidmq.log.schema import COLUMNS
from braidmq.pipeline.source.options import OptionError, ReadOptions


def test_what_is_not_said_has_a_default() -> None:
    options = ReadOptions.parse({"path": "/data"})
    assert options == ReadOptions(path="/data")
    assert options.columns == COLUMNS
    assert options.fail_on_data_loss


def test_all_that_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDMQ_TOKEN", "from the environment")
    options = ReadOptions.parse(
        {
            "BROKERS": "edge1:9883, https://edge2:443/",
            "topics": '["a,b/#", "c"]',
            "columns": "offset, topic",
            "startingtime": "2026-11-16 08:00",
            "endingOffsets": '{"site1": 5, "site2": "latest"}',
            "maxRowsPerTrigger": "10",
            "failOnDataLoss": "False",
            "retrySeconds": "0.5",
            "tasks": "partitions",
        }
    )
    assert options == ReadOptions(
        brokers=("http://edge1:9883", "https://edge2:443"),
        token="from the environment",
        topics=("a,b/#", "c"),
        columns=("offset", "topic"),
        starting=datetime(2026, 11, 16, 8, tzinfo=UTC),
        ending={"site1": 5, "site2": "latest"},
        rows_max=10,
        fail_on_data_loss=False,
        retry_s=0.5,
        task_each=True,
    )
    assert ReadOptions.parse({"path": "x", "token": "given"}).token == "given"
    assert "environment" not in repr(options)


def test_a_path_is_one_of_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert ReadOptions.parse({"path": "data"}).path == str(tmp_path / "data")
    assert ReadOptions.parse({"path": "file:///var/data"}).path == "/var/data"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topcs": "a"}, "there is no option `topcs`. Is `topics` meant?"),
        ({"xyz": "red"}, "There are path, brokers, token"),
        ({"brokers": "http://127.0.0.1:1"}, "either `path` or `brokers`"),
        ({"path": ""}, "either `path` or `brokers`"),
        ({"path": "", "brokers": "edge1"}, "edge1 is no address of an admin port"),
        ({"path": "", "brokers": "mqtt://edge1:1883"}, "is no address of an admin port"),
        ({"path": "", "brokers": "http://edge1:many"}, "is no address of an admin port"),
        ({"topics": "a/#/b"}, "'a/#/b' is no topic filter"),
        ({"topics": "[1]"}, "no list of texts"),
        ({"columns": "topic,color"}, "there is no column 'color'"),
        ({"startingOffsets": "first"}, "neither earliest, latest nor an offset for each broker"),
        ({"startingOffsets": '{"site1": -1}'}, "neither earliest, latest"),
        ({"startingOffsets": '{"site1": true}'}, "neither earliest, latest"),
        ({"startingOffsets": "{"}, "is no JSON"),
        ({"startingTime": "yesterday"}, "`startingTime` is no time: yesterday"),
        ({"startingTime": "2026-11-16", "startingOffsets": "latest"}, "`startingOffsets` together with `startingTime`"),
        ({"maxRowsPerTrigger": "0"}, "a number above 0"),
        ({"maxRowsPerTrigger": "ten"}, "a number above 0"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"retrySeconds": "1e9"}, "from 0 to 3600"),
        ({"retrySeconds": "nan"}, "from 0 to 3600"),
        ({"tasks": "many"}, "auto or partitions"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_in_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"path": "data"} | options)
    assert words in str(caught.value)
