"""The clustered adaptive client selection of FedMoS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.validation import check, count, none, whole_number
from .acs import bins_of, one_per_bin
from .draws import Intervals
from .selector import Selector, View, equal
from .similarity import angles_between, ward_tree


@dataclass(frozen=True, kw_only=True)
class CACS(Selector):
    """Clustered adaptive client selection (FedMoS, Section IV-C).

    In the first `warmup` rounds all clients take part, with weight p_i, in the run's own algorithm. Then every
    client sends ∇f_i, and clients are grouped by the cosine similarity of their gradients with agglomerative
    clustering: Ward linkage on the angles, as in the authors' code. From then on it is ACS with the clients
    ordered by cluster, clusters by descending Σp and clients within a cluster by descending p, so that each bin
    holds similar clients. Unbiased.

    The rounds and bytes of the warm-up and the bytes of the gradients are counted like all others.

    Args:
        m: Number of draws per round.
        clusters: Number of clusters (default: m).
        warmup: Number of rounds with all clients.

    Deviations:
        The model of the warm-up is kept; the authors' code averages only its last client and discards it.
        Clients that are unavailable when the gradients are collected form one more cluster.

    Example:
        >>> selector = fm.CACS(m=3, warmup=1)
        >>> result = fm.run(model, data, fm.FedMoS(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
        >>> len(result.history[0].cohort)
        10
    """

    selects_singly = False

    m: int
    clusters: int | None = None
    warmup: int = 4

    state = ("cluster",)

    def __post_init__(self) -> None:
        check(self, m=count, clusters=count | none, warmup=whole_number)

    @property
    def asks(self) -> Sequence[str]:
        return ("gradients",)

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        clients = torch.arange(view.N)
        if view.round < self.warmup:
            return clients, view.p
        if "cluster" not in view.state:
            labels = cluster_by_angle(view.gradients(clients), self.clusters or self.m)
            view.state["cluster"] = labels if view.ids is None else _for_federation(labels, view)
        cluster = view.here(view.state["cluster"])
        intervals = view.once("by cluster", lambda: Intervals(view.p, by_cluster(view.p, cluster)))
        return one_per_bin(view.key, intervals, self.m), equal(self.m)

    def bins(self, p: Tensor, cluster: Tensor) -> Tensor:
        """Return the probabilities p_{i,j}, (N, m), of drawing client i from bin j.

        Args:
            p: Importances of the clients, with sum one.
            cluster: The cluster of each client.
        """
        p = torch.as_tensor(p, dtype=torch.float64)
        return bins_of(p, by_cluster(p, torch.as_tensor(cluster)), self.m)


def cluster_by_angle(gradients: Tensor, clusters: int) -> Tensor:
    """Return a cluster number for each row, by Ward linkage on the angles between rows."""
    from scipy.cluster.hierarchy import fcluster

    angles = angles_between(gradients)
    if len(angles) == 1:
        return torch.zeros(1, dtype=torch.int64)
    labels = fcluster(ward_tree(angles), min(clusters, len(angles)), criterion="maxclust")
    return torch.from_numpy(labels.astype(np.int64) - 1)


def by_cluster(p: Tensor, cluster: Tensor) -> Tensor:
    """Return the clients ordered by cluster, clusters by descending Σp, clients within a cluster by descending p."""
    mass = torch.zeros(int(cluster.max()) + 1, dtype=torch.float64).index_add(0, cluster, p)
    rank = torch.empty_like(mass, dtype=torch.int64)
    rank[mass.argsort(descending=True, stable=True)] = torch.arange(len(mass))
    within = p.argsort(descending=True, stable=True)
    return within[rank[cluster[within]].argsort(stable=True)]


def _for_federation(labels: Tensor, view: View) -> Tensor:
    """Extend the labels of the available clients to the whole federation; unavailable clients share one more label."""
    assert view.ids is not None
    assert view.federation is not None
    whole = torch.full((view.federation,), int(labels.max()) + 1)
    whole[view.ids] = labels
    return whole
