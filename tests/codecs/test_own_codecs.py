"""Codecs of the user's: without a declaration, and without the base class."""

import pytest
import torch

import fedmos as fm
from fedmos.codecs.own import counted_bytes
from helpers.plain_classes import HalfPrecision, Undeclared
from helpers.problems import quadratic

PROBLEM = quadratic()
HOW = {
    "selection": fm.Uniform(m=2),
    "rounds": 3,
    "local_steps": 2,
    "batch_size": 4,
    "loss": PROBLEM.loss,
    "device": "cpu",
}


def run(**options):
    return fm.run(PROBLEM.model(), PROBLEM.data(), fm.Scaffold(lr=0.1), **(HOW | options))


def test_fields_are_found_where_they_are_not_declared():
    assert Undeclared().declare(5) == {"codes": (torch.int8, 5), "scale": ("float", 1)}
    assert fm.codecs.ErrorFeedback(HalfPrecision()).declare(7) == {"values": (torch.float16, 7)}
    assert fm.check(HalfPrecision()) == []
    assert fm.check(fm.codecs.Chain([fm.codecs.TopK(0.3), HalfPrecision()])) == []


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("codec", [HalfPrecision(), Undeclared()], ids=["methods", "undeclared"])
def test_bytes_are_those_that_nbytes_counts(codec, engine):
    D = 5
    for link in (codec, [codec], {"delta": codec}, fm.codecs.ErrorFeedback(codec)):
        coded = 1 if isinstance(link, dict) else 2
        result = run(uplink=link, engine=engine)
        assert result.history[0].bytes_up == 2 * (coded * codec.nbytes(D) + (2 - coded) * 4 * D)
    known = fm.FixedCohorts([[0, 1]] * 2)  # in the second round, both clients hold a model
    result = run(downlink={"x": codec}, rounds=2, engine=engine, selection=known)
    assert result.history[1].bytes_down == 2 * (codec.nbytes(D) + 4 * D)


def test_bytes_that_differ_from_the_fields_are_named_in_the_log(caplog):
    class Optimist(HalfPrecision):
        def nbytes(self, size):
            return size

    run(uplink=fm.codecs.ErrorFeedback(HalfPrecision()), downlink=Undeclared())
    assert not caplog.messages
    result = run(uplink=[fm.codecs.TopK(0.4), Optimist()], downlink=Optimist())
    assert caplog.messages == [
        "Optimist: 'nbytes' counts 5 bytes of a vector of 5 numbers, and the fields that it returns have 10; records "
        "have the former"
    ]
    assert result.history[0].bytes_up == 2 * 2 * (1 + 2 * 2)  # a chain counts the fields


def test_user_codec_acts_as_one_of_the_library():
    class Same:
        def encode(self, v, key):
            return {"values": v.half()}

        def decode(self, fields, size, key):
            return fields["values"].float()

        def nbytes(self, size):
            return 2 * size

    assert torch.equal(run(uplink=Same()).params, run(uplink=fm.codecs.Float16()).params)


def test_keys_of_a_run_are_those_of_the_functions_of_rng():
    class Noisy:
        def encode(self, v, key):
            return {"values": v + 1e-3 * fm.rng.normal(key, v.shape[-1]).to(v)}

        def decode(self, fields, size, key):
            return fields["values"]

        def nbytes(self, size):
            return 4 * size

    assert fm.check(Noisy()) == []  # 4 bytes are those of float32
    loop, batched = (run(uplink=Noisy(), engine=engine, dtype=torch.float64) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        ("encode", lambda self, v, key: v.half(), "Wrong: 'encode' must return a dictionary of tensors"),
        ("encode", lambda self, v, key: {"values": v.sum()}, "Wrong: 'encode' must return a dictionary of tensors"),
        ("decode", lambda self, fields, size, key: fields["values"][..., :2], "Wrong: 'decode' must return vectors of"),
        ("decode", lambda self, fields, size, key: fields["values"].unsqueeze(0), "Wrong: 'decode' must return vecto"),
        ("nbytes", lambda self, size: 1.5, "Wrong: 'nbytes' must return an integer ≥ 0, got 1.5"),
    ],
)
def test_mistakes_are_named(method, body, message):
    class Wrong(HalfPrecision):
        pass

    setattr(Wrong, method, body)
    with pytest.raises(ValueError, match=message):
        run(uplink=Wrong())


def test_length_that_depends_on_values_is_refused():
    class Sparse(HalfPrecision):
        def encode(self, v, key):
            return {"values": v.half()[..., : 1 + int(v.abs().sum() * 1e6) % 3]}

        def decode(self, fields, size, key):
            return torch.zeros(*fields["values"].shape[:-1], size)

    with pytest.raises(ValueError, match="Sparse: 'encode' must return 'values' of shape"):
        run(uplink=Sparse(), rounds=20)


def test_a_class_is_no_codec():
    with pytest.raises(ValueError, match="'uplink' must be a codec"):
        run(uplink=HalfPrecision)
    assert counted_bytes(fm.codecs.ErrorFeedback(Undeclared()), 10, torch.float64) == 22


def test_resumed_with_an_equal_codec(tmp_path):
    whole = run(uplink=HalfPrecision(2.0))
    run(uplink=HalfPrecision(2.0), rounds=1, out=tmp_path)
    again = run(uplink=HalfPrecision(2.0), out=tmp_path, resume=True)
    assert torch.equal(again.params, whole.params)
    assert again.info["uplink"] == "HalfPrecision(scale=2.0)"
    with pytest.raises(ValueError, match="uplink"):
        run(uplink=HalfPrecision(3.0), rounds=4, out=tmp_path, resume=True)
