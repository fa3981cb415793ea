"""Dataflows over three layers: a graph of components, and where each of them runs (Ishihara et al. 2021, §2).

Pure: a flow is read from a file, checked, and laid out over the sites that are there. What runs it is above.
"""

from braidmq.flows.flow import Dataflow, FlowComponent, FlowError, Layer, Needs
from braidmq.flows.layout import Layout, Placed, lay_out
from braidmq.flows.loading import load_flow, read_flow
from braidmq.flows.sites import FlowSite, layer_of

__all__ = [
    "Dataflow",
    "FlowComponent",
    "FlowError",
    "FlowSite",
    "Layer",
    "Layout",
    "Needs",
    "Placed",
    "lay_out",
    "layer_of",
    "load_flow",
    "read_flow",
]
