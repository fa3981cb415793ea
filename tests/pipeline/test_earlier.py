"""A snapshot of spools that an earlier version wrote below a checkpoint is used (`earlier/spools.zip`)."""

from __future__ import annotations

import zipfile
from pathlib import Path

from braidmq.pipeline.stateful.snapshots import Snapshots
from braidmq.pipeline.stateful.spools import SpoolsKey

EARLIER = Path(__file__).parent / "earlier" / "spools.zip"
KEY = SpoolsKey("in/#", 3, "0123456789abcdef", 1, True)


def test_an_earlier_snapshot_is_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(tmp_path / f"{KEY.log}-{KEY.partition}")
    found = Snapshots(str(tmp_path), KEY).find(9)
    assert found is not None
    assert (found.at, found.begun) == (9, {"in/1": 7})
    assert [one.payload for one in found.by_topic["in/1"]] == [b"7", b"8"]
