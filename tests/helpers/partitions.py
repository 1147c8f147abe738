"""Labels to be divided, and checks of the parts."""

import numpy as np
import pytest
from hypothesis import strategies as st

import fedmos as fm
from fedmos.data.partition import (
    IID,
    ByClass,
    Dirichlet,
    DirichletByClass,
    Natural,
    QuantitySkew,
    Shards,
)

VALUES = np.array([3, 7, 100, 101, 2000, 10**12])
"""Labels need not be 0, 1, 2, …"""


def labels(sizes, values=None, seed=0) -> np.ndarray:
    """So many samples of each class, in random order, and nobody may write into them."""
    values = np.arange(len(sizes)) if values is None else np.asarray(values)[: len(sizes)]
    y = np.random.default_rng(seed).permutation(np.repeat(values, sizes))
    y.flags.writeable = False
    return y


def dataset(y: np.ndarray) -> fm.Dataset:
    """Samples whose only content is their own number; each one's owner is its label."""
    return fm.Dataset("made", np.arange(len(y)), y.copy(), owner=y.copy())


def divide(scheme, y, clients, seed=0) -> list[np.ndarray]:
    """The split, made both ways, after what is true of every split: nothing twice, nothing out of range, nothing
    written, and the same again for the same seed."""
    before = y.copy()
    split = scheme.split(y, clients, seed)
    data = dataset(y).partition(scheme, clients=clients, seed=seed)
    assert np.array_equal(y, before)
    assert len(split) == len(data) == clients
    everything = np.concatenate(list(split))
    assert everything.dtype == np.int64
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(y)
    assert np.array_equal(everything, np.concatenate(list(scheme.split(y.copy(), clients, seed))))
    parts = [np.asarray(part) for part in split]
    assert data.sizes.tolist() == [len(part) for part in parts]
    for i in {0, clients // 2, clients - 1}:
        x_i, y_i = data.client(i)
        assert np.array_equal(x_i, parts[i])
        assert np.array_equal(y_i, y[parts[i]])
    assert data.importance.numpy() == pytest.approx(data.sizes.numpy() / len(everything))
    return parts


def counts_of(parts, y) -> np.ndarray:
    """(clients, classes), classes in ascending order of their labels."""
    names, label = np.unique(y, return_inverse=True)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cells = owner * len(names) + label[np.concatenate(list(parts))]
    return np.bincount(cells, minlength=len(parts) * len(names)).reshape(len(parts), len(names))


def all_given(parts, y) -> bool:
    return sum(map(len, parts)) == len(y)


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)
CLIENTS = st.integers(1, 25)
SEEDS = st.integers(0, 2**40)


def says_why(error: Exception, unless: bool = False) -> None:
    """A refusal names what was asked, and what to do or why not; unless it could have been granted."""
    sentence = str(error)
    assert not unless, f"refused without need: {sentence}"
    assert "must be" in sentence or ("Cannot" in sentence and "because" in sentence), sentence
    assert len(sentence) > 30


def check_crowd(parts, y, classes, low, high, even):
    """The promises of `ByClass`, for very many clients."""
    sizes, everything = parts.sizes, parts.entries
    assert len(np.unique(everything)) == len(everything) == sizes.sum()
    assert everything.min() >= 0
    assert everything.max() < len(y)
    counts = counts_of(parts, y)
    assert ((counts > 0).sum(1) == classes).all()
    assert (sizes >= low).all()
    assert (sizes <= high).all()
    if even:
        assert (counts.max(1) - np.where(counts > 0, counts, counts.max() + 1).min(1) <= 1).all()
    return counts


RANDOM = {
    "IID": IID(),
    "ByClass": ByClass(classes=2),
    "ByClass, sized": ByClass(classes=2, size=(4, 9)),
    "ByClass, even": ByClass(classes=2, size=6, share="even"),
    "Dirichlet": Dirichlet(alpha=0.5),
    "Dirichlet, data": Dirichlet(alpha=0.5, prior="data"),
    "Dirichlet, 0": Dirichlet(alpha=0),
    "DirichletByClass": DirichletByClass(alpha=0.5, least=1),
    "Shards": Shards(),
    "QuantitySkew": QuantitySkew(),
    "QuantitySkew, lognormal": QuantitySkew(law="lognormal"),
    "Natural": Natural(most=5),
}

EXTREME = [
    (DirichletByClass(alpha=1e-9), 100),
    (DirichletByClass(alpha=1e-300), 100),
    (DirichletByClass(alpha=5e-324), 1000),
    (DirichletByClass(alpha=0.001, least=50), 100),
    (DirichletByClass(alpha=0.5, attempts=10**9), 1000),
    (Dirichlet(alpha=1e-9), 1000),
    (Dirichlet(alpha=1e-300), 1000),
    (QuantitySkew(skew=1e6), 1000),
    (QuantitySkew(skew=1e308), 1000),
    (QuantitySkew(skew=1e308, law="lognormal"), 1000),
    (QuantitySkew(skew=5e-324), 1000),
    (ByClass(classes=11), 10),
    (ByClass(classes=10, size=10**9), 10),
    (ByClass(classes=2, size=(2, 10**9)), 10),
    (ByClass(classes=2, size=10), 601),
    (Shards(per_client=10**9), 10),
    (Natural(least=10**9), 10),
    (Natural(), 11),
]
"""Schemes with extreme settings, and a number of clients."""
