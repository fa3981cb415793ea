"""A newcomer can follow a message: the ways through the source stay short."""

from __future__ import annotations

import pytest

from tests.walks import WALKS


@pytest.mark.parametrize("name", WALKS)
def test_few_files_lie_on_the_way(name: str) -> None:
    walk, files_max = WALKS[name]
    trace = walk()
    assert len(trace.files) <= files_max, f"{name} leads through {', '.join(trace.files)}"
