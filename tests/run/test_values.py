"""Structured values: equal for equal content, different for different content, and JSON."""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedmos as fm
from fedmos.run.values import first_difference, structured


@dataclass(frozen=True)
class Inner:
    weights: object = None


@dataclass(frozen=True)
class Outer:
    inner: Inner
    cache: object = field(default=None, compare=False)


class Plain:
    def __init__(self, m):
        self.m = m

    @functools.cached_property
    def derived(self):
        return self.m + 1


class Slotted:
    __slots__ = ("m",)

    def __init__(self, m):
        self.m = m


def loss(outputs, targets):
    return (outputs - targets).mean()


LONG = torch.arange(1898.0)
CHANGED = LONG.clone()
CHANGED[949] += 1
DIFFERENT = {
    "tensor entry": (LONG, CHANGED),
    "tensor shape": (LONG, LONG.view(2, 949)),
    "tensor dtype": (LONG, LONG.double()),
    "half precision": (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)),
    "scalar tensor": (torch.tensor(1.0), torch.tensor(2.0)),
    "array entry": (LONG.numpy(), CHANGED.numpy()),
    "array of objects": (np.array(["a", None], object), np.array(["b", None], object)),
    "nested field": (Outer(Inner(LONG)), Outer(Inner(CHANGED))),
    "object": (Plain(1), Plain(2)),
    "slots": (Slotted(1), Slotted(2)),
    "class": (Plain(1), Slotted(1)),
    "function": (loss, nn.functional.mse_loss),
    "partial": (functools.partial(loss, 1), functools.partial(loss, 2)),
    "module option": (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss()),
    "module weight": (nn.CrossEntropyLoss(weight=LONG), nn.CrossEntropyLoss(weight=CHANGED)),
    "mapping": ({1: 0.5}, {1: 0.6}),
    "set": ({1, 2}, {1, 3}),
    "long list": (list(range(1000)), [*range(999), 0]),
    "bytes": (b"a", b"b"),
    "not a number": (float("nan"), float("inf")),
    "path": (Path("a"), Path("b")),
    "dtype": (torch.float32, torch.float64),
    "system": (fm.System(speed=fm.PerClient(range(1, 2000))), fm.System(speed=fm.PerClient([*range(1, 1999), 5]))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_values_that_differ_anywhere_are_told_apart(name):
    one, other = DIFFERENT[name]
    assert structured(one) != structured(other)
    assert first_difference(structured(one), structured(other)) is not None


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_value_survives_json(name):
    for value in DIFFERENT[name]:
        assert json.loads(json.dumps(structured(value), allow_nan=False)) == structured(value)


def test_equal_values_are_equal():
    assert structured(LONG) == structured(LONG.clone()) == structured(LONG.repeat(2).view(2, -1)[1])
    assert structured(torch.arange(6).view(2, 3).T) == structured(torch.arange(6).view(2, 3).T.contiguous())
    assert structured((1, 2)) == structured([1, 2])
    assert structured(np.float64(0.5)) == structured(0.5)
    assert structured({1: 2, 3: 4}) == structured({3: 4, 1: 2})
    assert structured(nn.MSELoss()) == structured(nn.MSELoss())


def test_caches_are_no_part_of_a_value():
    used = Plain(1)
    assert used.derived == 2
    assert structured(used) == structured(Plain(1))
    assert structured(Outer(Inner(), cache=1)) == structured(Outer(Inner(), cache=2))


def test_an_object_that_contains_itself():
    loop = Plain(None)
    loop.m = loop
    assert structured(loop) == structured(loop)


def test_algorithms_are_a_name_and_fields():
    found = structured(fm.FedMoS(lr=0.1))
    assert found["name"] == "FedMoS"
    assert found["fields"]["lr"] == 0.1


def test_a_difference_names_the_innermost_field():
    difference = first_difference(structured(Outer(Inner(LONG))), structured(Outer(Inner(CHANGED))))
    assert difference.path == ("inner", "weights")
    assert str(difference) == "is a float32 tensor of shape (1898,), got one with other values"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_structured_values_are_json_and_follow_equality(one, other):
    assert json.loads(json.dumps(structured(one), allow_nan=False)) == structured(one)
    if repr(one) == repr(other):
        assert structured(one) == structured(other)
    elif one != other and not any(isinstance(v, float) and v != v for v in (one, other)):
        assert structured(one) != structured(other) or "nan" in repr(one)


def test_attributes_of_a_subclass_that_is_no_dataclass_count():
    class More(Inner):
        def __init__(self, more):
            super().__init__(1)
            object.__setattr__(self, "more", more)

    assert structured(More(2)) == structured(More(2)) != structured(More(3))
