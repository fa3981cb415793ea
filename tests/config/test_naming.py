"""What a broker is called by its configuration: logs, checkpoints and stores of before rest on it."""

from __future__ import annotations

import pytest

from braidmq.config.naming import broker_name
from braidmq.config.settings import BraidConfig, Config


@pytest.mark.parametrize(
    ("braid", "called"),
    [
        (None, "plant"),
        (BraidConfig(name="s1"), "s1"),
        (BraidConfig(name="s1", advertise="b.example:7883"), "s1"),
        (BraidConfig(listen="127.0.0.1:7883"), "127.0.0.1:7883"),
        (BraidConfig(listen="[::1]:7883"), "[::1]:7883"),
        (BraidConfig(listen="127.0.0.1:0"), "plant"),
        (BraidConfig(listen="127.0.0.1:0", advertise="b.example:7883"), "b.example:7883"),
    ],
)
def test_a_brokers_name(braid: BraidConfig | None, called: str) -> None:
    assert broker_name(Config(name="plant", braid=braid)) == called
