"""What of a batch a spool needs: the last rows of each topic, however few there are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from braidmq.processors.rows import latest_of


@pytest.mark.parametrize("rows", range(8))
@pytest.mark.parametrize("count", range(1, 6))
def test_the_last_rows_of_each_topic_are_kept_in_their_order(rows: int, count: int) -> None:
    topics = ["a" if number % 3 else "b" for number in range(rows)]
    batch = pa.record_batch({"topic": pa.array(topics, pa.string()), "offset": pa.array(range(rows), pa.int64())})
    kept = [number for number in range(rows) if topics[number + 1 :].count(topics[number]) < count]
    assert latest_of(batch, count).column("offset").to_pylist() == kept
