"""Generated arrays that are invalid or extreme federations, and the check of their outcome."""

import functools
import warnings

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st
from torch import nn

import fedmos as fm
from helpers.work import counting_calls

MOST_CALLS = 200_000
"""Function calls within which a federation is made or refused, and a round of it run."""

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint16", "uint64", "bool", "complex64",
          "object", "U3", "S2", "datetime64[s]", "timedelta64[s]", "longdouble", ">f4", ">i8", "V4")  # fmt: skip
VALUES = (0, 1, 2, -1, -100, 3, 255, 1e-320, 1e30, 3e38, 1e39, 1e300, 2**31, 2**63 - 1, 2**63, np.nan, np.inf, -np.inf)


def _filled(shape, dtype, value):
    """An array of zeros and ones with one entry of its own."""
    with np.errstate(all="ignore"):
        a = (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype("int64")
        try:
            a = a.astype(dtype)
            if value is not None and a.size:
                a.reshape(-1)[a.size // 2] = value
        except (ValueError, OverflowError, TypeError):
            pass
    return a


SHAPES = st.one_of(
    st.just((4, 3)),
    st.just((4, 3)),
    st.just((4,)),
    st.lists(st.integers(0, 5), min_size=0, max_size=4).map(tuple),
)

MODELS = {
    "linear": lambda: nn.Linear(3, 4),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)),
    "one": lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
    "tokens": lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 4)),
}
FITTING = [
    ("linear", "cross_entropy"),
    ("flat", "cross_entropy"),
    ("one", "mse"),
    ("one", "bce"),
    ("tokens", "cross_entropy"),
]

PLAIN = {"x": ((4, 3), "float32"), "tokens": ((4, 3), "int64"), "label": ((4,), "int64"), "number": ((4,), "float32")}


@st.composite
def arrays(draw, kind, odd):
    """What x or y should be, or something odd in its place."""
    shape, dtype = PLAIN[kind]
    if not odd:
        return _filled(shape, dtype, None)
    which = draw(st.integers(0, 5))
    shape = draw(SHAPES) if which in (0, 4) else shape
    dtype = draw(st.sampled_from(DTYPES)) if which in (1, 4) else dtype
    value = draw(st.sampled_from(VALUES)) if which in (2, 4, 5) else None
    how = draw(st.integers(0, 31)) if which in (3, 5) else -1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _dressed(_filled(shape, dtype, value), how)


def _dressed(a, how):
    """The array as something else that is array-like, or not."""
    try:
        match how:
            case 0:
                return a.tolist()
            case 1:
                return np.ma.MaskedArray(a, mask=np.arange(a.size).reshape(a.shape) == 1)
            case 2:
                return np.ma.MaskedArray(a)
            case 3:
                return torch.from_numpy(a.copy())
            case 4:
                return torch.from_numpy(a.copy()).float().requires_grad_()
            case 5:
                return torch.from_numpy(a.copy()).to_sparse()
            case 6:
                return torch.from_numpy(a.copy()).to("meta")
            case 7:
                return torch.from_numpy(a.copy()).to(torch.bfloat16)
            case 8:
                return np.lib.stride_tricks.as_strided(a, strides=tuple(0 for _ in a.shape))
            case 9:
                return np.repeat(a, 7, axis=0)[::7]
            case 10:
                return a[::-1]
            case 11:
                return np.asfortranarray(a)
            case 12:
                return np.broadcast_to(a[:1], a.shape)
            case 13:
                return [[1.0, 2.0], [3.0]]
            case 14:
                return [a[:2], a[:1]]
            case 15:
                return None
            case 16:
                return "abcd"
            case 17:
                return {"a": a}
            case 18:
                return a.tobytes()
            case 19:
                return 5
            case 20:
                return iter(a)
            case 21:
                return a.astype(object)
            case 22:
                return pd.DataFrame(a)
            case 23:
                return torch.quantize_per_tensor(torch.from_numpy(a.copy()).float(), 0.1, 0, torch.qint8)
            case 24:
                return [10**400] * len(a)
            case 25:
                return [2**70] * len(a)
            case 26:
                return np.zeros(len(a), [("a", "f4"), ("b", "i4")])
            case 27:
                return range(len(a))
            case 28:
                return memoryview(np.ascontiguousarray(a))
            case 29:
                return torch.from_numpy(a.copy()).to(torch.complex64).conj()
            case 30:
                return np.broadcast_to(np.float32(1), (10**13,))
            case 31:
                return torch.from_numpy(a.copy()).float().to(torch.float8_e4m3fn)
            case _:
                return a
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
        return a


IMPORTANCE = st.one_of(
    st.none(),
    st.none(),
    st.sampled_from([[1, 2], [0, 0], [1, -1], [1, np.nan], [np.inf, 1], ["1", "2"], "ab", 5, [[1, 2]], [1], [1, 2, 3],
                     [1e308, 1e308], [1e-320, 0], [1j, 1], [None, 1], [True, False], {}, [10**400, 1], np.ma.MaskedArray([1, 2], [True, False]),
                     torch.tensor([1.0, 2.0], requires_grad=True), [0, 1]]),
)  # fmt: skip


@st.composite
def federations(draw):
    """Arguments of `FederatedData.from_arrays`, and the model and loss that they are for; one to three things are odd."""
    model, loss = draw(st.sampled_from(FITTING))
    kinds = "tokens" if model == "tokens" else "x", "label" if loss == "cross_entropy" else "number"
    n = draw(st.integers(1, 3))
    odd = draw(st.lists(st.integers(0, 2 * n + 4), min_size=1, max_size=3))
    pairs = [(draw(arrays(kinds[0], 2 * i in odd)), draw(arrays(kinds[1], 2 * i + 1 in odd))) for i in range(n)]
    test = None
    if 2 * n in odd:
        test = draw(
            st.one_of(
                st.sampled_from([5, (None, None), "ab", ()]), st.tuples(arrays(kinds[0], True), arrays(kinds[1], False))
            )
        )
    elif 2 * n + 1 in odd:
        test = draw(arrays(kinds[0], False)), draw(arrays(kinds[1], True))
    importance = draw(IMPORTANCE) if 2 * n + 2 in odd else None
    clients = pairs
    if 2 * n + 3 in odd:
        others = [
            None,
            5,
            "ab",
            {0: pairs[0]},
            [pairs[0][0]],
            [(*pair, 1) for pair in pairs],
            [list(p) for p in pairs],
            [],
            np.zeros((2, 2, 4)),
        ]
        clients = draw(st.sampled_from(others))
    if 2 * n + 4 in odd:
        model, loss = draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from(["cross_entropy", "mse", "bce"]))
    return {"clients": clients, "test": test, "importance": importance}, model, loss


@st.composite
def splits(draw):
    """A data set, and an array of sample numbers for each client."""
    x, y = _filled((8, 3), "float32", draw(st.sampled_from([None, None, *VALUES]))), _filled((8,), "int64", None)
    numbers = st.one_of(
        st.lists(st.integers(0, 7), min_size=1, max_size=5),
        st.lists(st.one_of(st.integers(-3, 12), st.integers()), max_size=4),
        st.sampled_from([[0.5], ["a"], None, 3, [[1]], [True], np.array([1, 2], np.uint64), np.array([2**63], np.uint64), np.array([1.0])]),
    )  # fmt: skip
    parts = draw(st.one_of(st.lists(numbers, min_size=0, max_size=3), st.sampled_from([None, 5, "ab", [[]]])))
    return fm.Dataset("made", x, y, x, y), parts, draw(st.sampled_from([None, None, 1, 2, 0, -1, True, 1.0, 10**12]))


@functools.cache
def _weights(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    if name == "flat":
        model(torch.zeros(1, 3))
    return model


def sentence(error):
    """An error that a user can read."""
    text = str(error)
    assert isinstance(error, ValueError | TypeError), repr(error)
    assert text
    assert "\n" not in text, text
    assert len(text) < 500, text
    assert not isinstance(error, UnicodeError)


def made(make):
    """What `make` returns, or None where it refuses in a sentence."""
    try:
        return counting_calls(make, MOST_CALLS)
    except (ValueError, TypeError) as error:
        sentence(error)
        return None


def outcome(make, model, loss, train):
    """ "refused", "accepted" or "trained": a federation that is accepted trains to a finite model, or is refused then."""
    data = made(make)
    if data is None:
        return "refused"
    if not train:
        return "accepted"
    assert data.importance.isfinite().all()
    assert abs(float(data.importance.sum()) - 1) < 1e-9
    try:
        result = made(lambda: _run(model, data, loss))
    except fm.DivergenceError:  # which names the client, and is fair for numbers so large
        assert float(data.x.double().abs().max()) > 1e15 or float(data.y.double().abs().max()) > 1e15
        return "diverged"
    if result is None:
        return "refused"
    assert result.params.isfinite().all()
    return "trained"


def _run(model, data, loss):
    return fm.run(
        model=_weights(model),
        data=data,
        algorithm=fm.FedAvg(lr=1e-3),
        selection=fm.Full(),
        rounds=1,
        local_steps=1,
        batch_size=2,
        loss=loss,
        clip=1.0,
        engine="loop",
        device="cpu",
    )
