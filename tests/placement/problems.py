"""Problems to try placement on, and the paper's equations written out as they stand: slow, and hard to get wrong."""

from __future__ import annotations

import numpy as np

from braidmq.placement.field import Field, FieldSettings, scattered
from braidmq.placement.problem import HomeServer, Ints, Latencies, ManagedTopic, PlacementProblem, pose
from braidmq.placement.social import PAPER_SHAPE, GraphShape, made_up
from braidmq.processors.placement import Capacity, TopicLoad, edge_load, local_share

SMALL_SHAPE = GraphShape(6, 3, 6, 3, 1, 15, 24)


def small_field(seed: int, scatter_km: float = 5.0, storage: float = 18.0, compute: float = 90.0) -> Field:
    """Six topics on four servers that have too little storage for the nearest ones."""
    chance = np.random.default_rng(seed)
    settings = FieldSettings(scatter_km, 1.0, 4, storage, compute, 5.0)
    return scattered(made_up(SMALL_SHAPE, chance), settings, chance)


def paper_field(seed: int, scatter_km: float = 5.0, spool_each: float = 2.0) -> Field:
    chance = np.random.default_rng(seed)
    return scattered(made_up(PAPER_SHAPE, chance), FieldSettings(scatter_km, spool_each), chance)


def random_problem(seed: int) -> PlacementProblem:
    """Publishers that do not subscribe, subscribers that do not publish, rates, spools in bytes, unequal servers."""
    chance = np.random.default_rng(seed)
    clients = [f"c{number}" for number in range(12)]
    topics = []
    for number in range(5):
        members = [str(name) for name in chance.choice(clients, int(chance.integers(2, 7)), replace=False)]
        publishers = {
            name: float(chance.uniform(0.5, 3)) for name in members[: int(chance.integers(1, len(members) + 1))]
        }
        subscribers = [name for name in members if name not in publishers or chance.random() < 0.5] or members[-1:]
        topics.append(ManagedTopic(f"t{number}", publishers, subscribers, 4.0 + number, float(chance.uniform(50, 200))))
    servers = [
        HomeServer(f"s{number}", float(chance.uniform(100, 400)), float(chance.uniform(5, 30))) for number in range(3)
    ]
    between = chance.uniform(0, 4, (3, 3))
    np.fill_diagonal(between, 0)
    return pose(servers, clients, topics, Latencies(chance.uniform(0, 3, (12, 3)), between, chance.uniform(3, 8, 3)))


def literal_delays(problem: PlacementProblem, homes: Ints) -> tuple[float, float, float]:
    """(Y, Y1, Y2): Eqs 1–9 message by message, with storage, load and θ as a broker works them out for itself."""
    shares = local_shares_one_by_one(problem, homes)
    delays = problem.latencies
    total = distance_total = resource_total = messages = 0.0
    for topic in range(len(problem.topics)):
        rows = range(problem.rows_of_topic(topic).start, problem.rows_of_topic(topic).stop)
        members = problem.members
        subscribers = [int(members.client[row]) for row in rows if members.subscribes[row]]
        for row in rows:
            publisher = int(members.client[row])
            receivers = [client for client in subscribers if client != publisher]
            if not members.publishes[row] or not receivers:
                continue
            home = int(homes[publisher])
            distance = resource = 0.0
            for receiver in receivers:
                there = int(homes[receiver])
                distance += delays.client_ms[publisher, home] + delays.client_ms[receiver, there]
                resource += 2 * delays.cloud_ms[home] * (1 - shares[home])
                resource += shares[home] * delays.server_ms[home, there]
            rate = float(members.rate[row])
            messages += rate
            distance_total += rate * distance / len(receivers)
            resource_total += rate * resource / len(receivers)
            total += rate * (distance + resource) / len(receivers)
    return total / messages, distance_total / messages, resource_total / messages


def local_shares_one_by_one(problem: PlacementProblem, homes: Ints) -> list[float]:
    shares = []
    for server in range(len(problem.servers)):
        loads = []
        for topic in range(len(problem.topics)):
            rows = problem.rows_of_topic(topic)
            clients = problem.members.client[rows][problem.members.publishes[rows]]
            publishers = sum(1 for client in clients if homes[client] == server)
            if publishers:
                loads.append(TopicLoad(int(problem.spool[topic]), publishers, float(problem.stored[topic])))
        capacity = Capacity(float(problem.storage[server]), float(problem.compute[server]))
        shares.append(local_share(capacity, edge_load(loads)))
    return shares
