"""Where components run: quick ones near, patient ones where there is room; and never more than a site has."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.flows import Dataflow, FlowComponent, FlowError, FlowSite, Layer, Needs, lay_out, layer_of
from braidmq.flows.flow import LAYERS, Delays
from braidmq.flows.layout import response_times

SITES = [
    FlowSite("bus7", "device", 0.5, 256),
    FlowSite("edge1", "edge", 4, 4096),
    FlowSite("edge2", "edge", 4, 4096),
    FlowSite("cloud", "cloud", 100, 100_000),
]


def chain(*needs: Needs, instances: int = 1) -> Dataflow:
    """A recorder, and components one behind the other."""
    components = [FlowComponent("c0")]
    for number, one in enumerate(needs, 1):
        components.append(FlowComponent(f"c{number}", (f"c{number - 1}",), "x.py", needs=one, instances=instances))
    return Dataflow("f", tuple(components))


def test_what_must_be_quick_is_near_and_what_may_wait_is_where_there_is_room() -> None:
    layout = lay_out(chain(Needs(response_s=0.01), Needs(response_s=0.2), Needs()), SITES)
    assert layout.layers == {"c0": "device", "c1": "edge", "c2": "cloud", "c3": "cloud"}
    assert layout.response_s == pytest.approx({"c0": 0, "c1": 0.005, "c2": 0.05, "c3": 0.05})


def test_the_way_back_counts() -> None:
    """Through the cloud and back to the edge is too far, though the cloud alone would answer in time."""
    flow = Dataflow(
        "f",
        (
            FlowComponent("c0"),
            FlowComponent("c1", ("c0",), "x.py"),
            FlowComponent("c2", ("c1",), "x.py", layer="edge", needs=Needs(response_s=0.06)),
        ),
    )
    assert lay_out(flow, SITES).layers["c1"] == "edge"


def test_what_runs_on_spark_goes_to_a_site_of_the_cloud_that_has_it() -> None:
    flow = Dataflow("f", (FlowComponent("c0"), FlowComponent("c1", ("c0",), "x.py", runs="spark")))
    with pytest.raises(FlowError, match=r"in the layer cloud, at a site with Spark \(--brokers\)"):
        lay_out(flow, SITES)
    with_spark = [*SITES, FlowSite("small", "cloud", 1, 512, has_spark=True)]
    assert [one.site for one in lay_out(flow, with_spark).instances] == ["small"]


def test_instances_are_spread_over_sites_with_room() -> None:
    flow = chain(Needs(cpu=1, response_s=0.01), instances=6)
    assert sorted(one.site for one in lay_out(flow, SITES).instances) == ["edge1"] * 3 + ["edge2"] * 3


def test_a_layer_whose_sites_are_full_is_left_for_another() -> None:
    """Four fit into the memory of each edge, and nine do not, though the edges together would have room for them."""
    sites = [
        FlowSite("edge1", "edge", 400, 4500),
        FlowSite("edge2", "edge", 400, 4800),
        FlowSite("cloud", "cloud", 10, 100_000),
    ]
    flow = chain(Needs(memory=1024), instances=9)
    assert lay_out(flow, sites).layers["c1"] == "cloud"
    pinned = FlowComponent("c1", ("c0",), "x.py", needs=Needs(memory=1024), instances=9, layer="edge")
    with pytest.raises(FlowError, match=r"no room for c1 in the layer edge: 9 × 0\.1 processors and 1024 MiB"):
        lay_out(Dataflow("f", (FlowComponent("c0"), pinned)), sites)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(cpu=1000), "no room for c1 anywhere"),
        (Needs(cpu=1, response_s=0.001), r"no layout fits .*and meets all response times \(c1 0.001 s\)"),
        (Needs(service_s=2, response_s=1), "meets all response times"),
    ],
)
def test_what_is_lacking_is_said(needs: Needs, words: str) -> None:
    with pytest.raises(FlowError, match=words):
        lay_out(chain(needs), SITES)


def test_nowhere() -> None:
    with pytest.raises(FlowError, match="there is no site"):
        lay_out(chain(Needs()), [])


def test_all_who_know_the_same_agree() -> None:
    flow = chain(Needs(cpu=0.4), Needs(cpu=0.4, response_s=0.1), instances=5)
    layouts = {str(lay_out(flow, sites)) for sites in itertools.permutations(SITES)}
    assert len(layouts) == 1


@pytest.mark.parametrize(("cluster", "layer"), [("c", "cloud"), ("c/e", "edge"), ("c/e/d", "device")])
def test_the_layer_of_a_cluster(cluster: str, layer: Layer) -> None:
    assert layer_of(cluster) == layer


@pytest.mark.parametrize("cluster", ["", "a/b/c/d"])
def test_a_cluster_without_a_layer(cluster: str) -> None:
    with pytest.raises(FlowError, match="say which with --layer"):
        layer_of(cluster)


needs_ = st.builds(
    Needs,
    cpu=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    memory=st.just(1.0),
    service_s=st.sampled_from([0.0, 0.01]),
    response_s=st.sampled_from([None, 0.01, 0.03, 0.06, 0.2]),
)


@given(st.lists(needs_, min_size=1, max_size=5), st.data())
def test_no_layout_that_keeps_to_all_needs_uses_less(needs: list[Needs], data: st.DataObject) -> None:
    """Against every combination of layers, tried one by one."""
    components = [FlowComponent("c0")]
    for number, one in enumerate(needs, 1):
        source = data.draw(st.integers(0, number - 1))
        components.append(FlowComponent(f"c{number}", (f"c{source}",), "x.py", needs=one))
    flow = Dataflow("f", tuple(components), Delays())
    room = {"device": 0.5, "edge": 4.0, "cloud": 100.0}
    sites = [FlowSite(layer, layer, room[layer], 1e6) for layer in LAYERS]
    best = None
    for combination in itertools.product(LAYERS, repeat=len(needs)):
        layers: dict[str, Layer] = {"c0": "device"}
        layers |= {f"c{n}": layer for n, layer in enumerate(combination, 1)}
        used = {
            layer: sum(one.cpu for one, at in zip(needs, combination, strict=True) if at == layer) for layer in LAYERS
        }
        done = response_times(flow, layers)
        is_kept = all(one.needs.response_s is None or done[one.name] <= one.needs.response_s + 1e-9 for one in flow)
        if is_kept and all(used[layer] <= room[layer] for layer in LAYERS):
            cost = sum(used[layer] / room[layer] for layer in LAYERS)
            best = cost if best is None else min(best, cost)
    try:
        found = lay_out(flow, sites).layers
    except FlowError:
        assert best is None
        return
    assert best is not None
    cost = sum(one.needs.cpu / room[found[one.name]] for one in flow if not one.is_external)
    done = response_times(flow, found)
    assert all(one.needs.response_s is None or done[one.name] <= one.needs.response_s + 1e-9 for one in flow)
    assert cost == pytest.approx(best)
