"""What a flow file may say, and what it is told if it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.flows import FlowError, load_flow, read_flow

BUS = """
name = "bus"

[[component]]
name = "recorder"
topic = "bus/+/frames"

[[component]]
name = "persons"
from = ["recorder"]
file = "bus.py:persons"
use = "reserved"

[[component]]
name = "count"
from = ["persons"]
file = "bus.py:count"
needs = {cpu = 0.5, response_s = 2}
"""


def test_a_graph_with_its_topics() -> None:
    flow = read_flow(BUS)
    recorder, persons, count = flow
    assert [one.is_external for one in flow] == [True, False, False]
    assert (count.needs.cpu, count.needs.response_s) == (0.5, 2)
    assert flow.takers_of("recorder") == [persons]
    assert flow.output_topic(recorder, "7") == "bus/7/frames"
    assert flow.stream_of(recorder, "bus/7/frames") == "7"
    assert flow.output_topic(persons, "7") == "flow/bus/persons/7"
    assert flow.stream_of(persons, "flow/bus/persons/7") == "7"
    assert flow.group_of(count) == "bus.count"


def test_components_stand_behind_their_sources() -> None:
    flow = read_flow(
        'name = "f"\n'
        '[[component]]\nname = "c"\nfrom = ["b", "a"]\nfile = "x.py"\n'
        '[[component]]\nname = "b"\nfrom = ["a"]\nfile = "x.py"\n'
        '[[component]]\nname = "a"\n'
    )
    assert [one.name for one in flow.in_order()] == ["a", "b", "c"]


SPARK = (
    'name = "f"\n[[component]]\nname = "a"\n[[component]]\nname = "x"\nfrom = ["a"]\nfile = "x.py"\nruns = "spark"\n'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not TOML"),
        ('name = "f"', "missing required field `component`"),
        ('name = "f"\ncomponent = []', "no components"),
        ('name = "a/b"\n[[component]]\nname = "x"', "the flow's name is 'a/b'"),
        ('name = "f"\n[[component]]\nname = "$x"', "a component's name is '$x'"),
        ('name = "f"\n[[component]]\nname = "x"\nfrom = ["y"]', "there is no such component"),
        ('name = "f"\n[[component]]\nname = "x"\n[[component]]\nname = "x"', "two components are called 'x'"),
        ('name = "f"\n[[component]]\nname = "x"\ninstances = 0', "instances = 0, expected 1 to 1,000"),
        ('name = "f"\n[[component]]\nname = "x"\nslots = 70000', "slots = 70000, expected 1 to 65,535"),
        ('name = "f"\n[[component]]\nname = "x"\nneeds = {cpu = nan}', "needs.cpu = nan"),
        ('name = "f"\n[[component]]\nname = "x"\nneeds = {response_s = -1}', "needs.response_s = -1"),
        ('name = "f"\n[[component]]\nname = "x"\nfile = "x.py"', "takes messages from nobody"),
        ('name = "f"\n[[component]]\nname = "x"\ntopic = "a/#"', "expected one + for the stream"),
        ('name = "f"\n[[component]]\nname = "x"\ntopic = "a/b+"', "topic = 'a/b+'"),
        ('name = "f"\n[[component]]\nname = "x"\nuse = "mine"', "Invalid enum value 'mine'"),
        ('name = "f"\n[[component]]\nname = "x"\nlayers = "edge"', "unknown field `layers`"),
        (
            'name = "f"\n[[component]]\nname = "x"\nfrom = ["y"]\nfile = "x.py"\n'
            '[[component]]\nname = "y"\nfrom = ["x"]\nfile = "x.py"',
            "round and round: x, y",
        ),
        ('name = "f"\n[[component]]\nname = "x"\nruns = "spark"', 'is for message processors: say which, file = "…"'),
        (f'{SPARK}layer = "edge"', "Spark is in the cloud"),
        (f"{SPARK}instances = 2", "is one query for all streams"),
        (f'{SPARK}use = "reserved"', "is one query for all streams"),
        (SPARK.replace('["a"]', '["a", "b"]') + '[[component]]\nname = "b"', "of one component, not of 2"),
        (
            SPARK + '[[component]]\nname = "y"\nfrom = ["x"]\nfile = "x.py"\nuse = "reserved"',
            "reserves nobody: y has to be shared",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "flow.toml"
    path.write_text(text)
    with pytest.raises(FlowError) as found:
        load_flow(path)
    assert words in str(found.value)
    assert str(path) in str(found.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FlowError, match="cannot be read: No such file"):
        load_flow(Path("nowhere.toml"))
