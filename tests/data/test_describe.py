"""Descriptions and plots of federations."""

import xml.etree.ElementTree as ET
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmos as fm
from fedmos.data.partition import (
    Dirichlet,
    Fixed,
)
from helpers.partitions import dataset, labels


def federation(clients: list[list[int]]) -> fm.FederatedData:
    return fm.FederatedData.from_arrays([(np.zeros((len(y), 1)), np.array(y)) for y in clients])


def test_describe_by_hand():
    """Clients {0,0,1,1}, {0,0}, {1,1,2,2,2,2,2,2}: q = (4, 4, 6)/14."""
    data = federation([[0, 0, 1, 1], [0, 0], [1, 1, 2, 2, 2, 2, 2, 2]])
    found = data.describe()
    assert (found.clients, found.samples, found.test_samples) == (3, 14, 0)
    assert found.sizes == {
        "min": 2,
        "median": 4,
        "mean": pytest.approx(14 / 3),
        "max": 8,
        # Σ|n_i − n_j| over ordered pairs is 2·(2 + 4 + 6) = 24, over 2·3²·mean = 84
        "gini": pytest.approx(24 / 84),
    }
    of = found.labels
    assert of.classes == 3
    assert of.counts.tolist() == [[2, 2, 0], [2, 0, 0], [0, 2, 6]]
    assert of.per_client == pytest.approx(5 / 3)
    third = -(0.25 * log2(0.25) + 0.75 * log2(0.75))
    assert of.entropy == pytest.approx((1 + 0 + third) / 3)
    q = [4 / 14, 4 / 14, 6 / 14]
    assert of.entropy_all == pytest.approx(-sum(v * log2(v) for v in q))
    # ½Σ|q_i − q|: the excess over q, 2·(1/2 − 2/7) = 3/7, 1 − 2/7 = 5/7, 3/4 − 3/7 = 9/28
    assert of.total_variation == pytest.approx((3 / 7 + 5 / 7 + 9 / 28) / 3)
    kl = [log2(0.5 / q[0]), log2(1 / q[0]), 0.25 * log2(0.25 / q[1]) + 0.75 * log2(0.75 / q[2])]
    assert of.divergence == pytest.approx((4 * kl[0] + 2 * kl[1] + 8 * kl[2]) / 14)
    table = str(found)
    assert "3, 1.7 per client" in table
    assert "2 to 8, median 4, gini 0.29" in table


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=8))
def test_describe_from_the_definitions(clients):
    found = federation(clients).describe()
    everything = [c for y in clients for c in y]
    n, N = len(everything), len(clients)
    q = {c: everything.count(c) / n for c in set(everything)}
    own = [{c: y.count(c) / len(y) for c in set(y)} for y in clients]
    assert found.labels.per_client == pytest.approx(sum(map(len, own)) / N)
    assert found.labels.entropy == pytest.approx(-sum(v * log2(v) for q_i in own for v in q_i.values()) / N, abs=1e-12)
    assert found.labels.entropy_all == pytest.approx(-sum(v * log2(v) for v in q.values()), abs=1e-12)
    distance = [0.5 * sum(abs(q_i.get(c, 0) - q[c]) for c in q) for q_i in own]
    assert found.labels.total_variation == pytest.approx(sum(distance) / N, abs=1e-12)
    kl = [sum(v * log2(v / q[c]) for c, v in q_i.items()) for q_i in own]
    shared = sum(len(y) / n * d for y, d in zip(clients, kl, strict=True))
    assert found.labels.divergence == pytest.approx(shared, abs=1e-12)
    # What knowing the client tells of a label: H(label) − H(label | client).
    conditional = -sum(len(y) / n * v * log2(v) for y, q_i in zip(clients, own, strict=True) for v in q_i.values())
    assert found.labels.divergence == pytest.approx(found.labels.entropy_all - conditional, abs=1e-9)
    sizes = [len(y) for y in clients]
    gini = sum(abs(a - b) for a in sizes for b in sizes) / (2 * N * n)
    assert found.sizes["gini"] == pytest.approx(gini, abs=1e-12)


def test_describe_reads_the_index_and_the_test_set():
    y = labels([30, 30, 0, 30])
    made = fm.Dataset("made", np.zeros((90, 2)), y.copy(), np.zeros((7, 2)), np.zeros(7, int), labels=list("abcde"))
    found = made.partition(Dirichlet(alpha=0), clients=9).describe()
    assert found.test_samples == 7
    assert found.labels.classes == 5  # names say how many there are, though nobody has a c or an e
    assert found.labels.counts.sum(0).tolist() == [30, 30, 0, 30, 0]
    assert found.labels.entropy == 0
    assert found.labels.entropy_all == pytest.approx(log2(3))
    assert found.labels.total_variation == pytest.approx(2 / 3)
    assert found.labels.divergence == pytest.approx(log2(3))
    part = made.partition(Fixed([np.flatnonzero(y == 3)[:4]])).describe()  # samples that nobody holds do not count
    assert part.samples == 4
    assert part.labels.entropy_all == 0
    assert part.labels.total_variation == 0


def test_describe_takes_labels_of_any_number():
    """Two classes are two classes, whatever numbers they go by."""
    found = federation([[3, 3], [10**15, 10**15, 3, 3], [10**15, 10**15]]).describe()
    assert found.labels.per_client == pytest.approx(4 / 3)
    assert found.labels.entropy_all == pytest.approx(1)
    assert found.labels.total_variation == pytest.approx(1 / 3)


def test_describe_without_classes(tmp_path):
    data = fm.FederatedData.from_arrays([(np.zeros((3, 1)), [0.5, 1.0, 2.0]), (np.zeros((1, 1)), [1.0])])
    found = data.describe()
    assert found.labels is None
    assert found.sizes["gini"] == pytest.approx(0.25)
    assert "class" not in str(found)
    with pytest.raises(ValueError, match="Cannot plot the split because its targets are not class numbers"):
        found.plot(tmp_path / "no.svg")


SVG = "{http://www.w3.org/2000/svg}"


def test_the_plot_has_a_bubble_for_each_client_and_class(tmp_path):
    found = federation([[0, 0, 1, 1], [0, 0], [1, 1, 2, 2, 2, 2, 2, 2]]).describe()
    for path in (tmp_path / "one.svg", str(tmp_path / "two.svg")):
        found.plot(path)
        root = ET.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        circles = list(root.iter(f"{SVG}circle"))
        assert len(circles) == 5
        area = {c.find(f"{SVG}title").text: float(c.get("r")) ** 2 for c in circles}
        assert set(area) == {
            "client 0, class 0: 2",
            "client 0, class 1: 2",
            "client 1, class 0: 2",
            "client 2, class 1: 2",
            "client 2, class 2: 6",
        }
        assert area["client 2, class 2: 6"] / area["client 0, class 0: 2"] == pytest.approx(3, rel=0.05)
        left, top, width, height = map(float, root.get("viewBox").split())
        for c in circles:
            assert left <= float(c.get("cx")) - float(c.get("r"))
            assert float(c.get("cx")) + float(c.get("r")) <= left + width
            assert top <= float(c.get("cy")) - float(c.get("r"))
            assert float(c.get("cy")) + float(c.get("r")) <= top + height


@pytest.mark.parametrize(("clients", "most", "shown"), [(100, 40, 40), (100, 7, 7), (30, 40, 30), (1, 40, 1)])
def test_the_plot_shows_some_of_many(tmp_path, clients, most, shown):
    found = dataset(labels([200] * 5)).partition(Dirichlet(alpha=0.2), clients=clients).describe()
    found.plot(tmp_path / "split.svg", most=most)
    root = ET.parse(tmp_path / "split.svg").getroot()
    titles = [c.find(f"{SVG}title").text for c in root.iter(f"{SVG}circle")]
    who = {int(title.split()[1].rstrip(",")) for title in titles}
    assert len(who) == shown
    assert len(titles) == (found.labels.counts[sorted(who)] > 0).sum()
    assert {0, clients - 1} <= who
