"""The one list of methods: what it says of each is so, and everybody who names methods means these."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from braidmq.host import Message
from braidmq.overlay.flexible import SIZE
from braidmq.pubsub import registry
from braidmq.pubsub.method import Method, ProvenMethod, ScopedMethod
from braidmq.pubsub.registry import METHODS, MethodName, MethodSettings, OverlaySettings
from braidmq.sim.engine import SimHost, Simulator
from braidmq.sim.trials.methods import TRIAL_METHODS


def built(name: MethodName) -> tuple[SimHost, Method]:
    host = Simulator(1).host(0)
    entry = METHODS[name]
    overlay = entry.build_overlay(OverlaySettings(host=host, introduce=lambda: None, vector=lambda: 5))
    return host, entry.build_method(overlay, MethodSettings(name="b0", cluster="c", is_lossless=True))


def test_every_name_has_an_entry_and_the_simulator_can_play_each() -> None:
    assert set(METHODS) == set(get_args(MethodName)) == set(TRIAL_METHODS)
    assert all(TRIAL_METHODS[name].entry is entry for name, entry in METHODS.items())
    assert registry.TABLE_SIZE_DEFAULT == SIZE


@pytest.mark.parametrize("name", METHODS)
def test_what_is_said_of_a_method_is_so(name: MethodName) -> None:
    _, method = built(name)
    assert isinstance(method, ProvenMethod) == METHODS[name].is_proven
    assert isinstance(method, ScopedMethod) == METHODS[name].is_scoped


@pytest.mark.parametrize("name", METHODS)
def test_whatever_a_broker_has_a_handler_for_is_among_its_messages(name: MethodName) -> None:
    host, _ = built(name)
    heard: set[type[Message]] = set(host.table)
    assert heard
    assert heard <= set(METHODS[name].messages())


def test_the_list_alone_loads_no_method() -> None:
    script = (
        "import sys, braidmq.pubsub.registry\n"
        "print([name for name in sys.modules if 'relay_free' in name or 'baselines' in name or 'suzaku' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
