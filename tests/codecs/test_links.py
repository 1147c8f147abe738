"""The options `uplink` and `downlink`: what is refused, and configurations."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fedmos as fm
from fedmos.codecs import Chain, ErrorFeedback, Float16, Quantize, Rotate, Sign, TopK
from fedmos.config import schema as config
from fedmos.experiments import runner
from fedmos.storage import toml
from helpers.configs import TABLE
from helpers.conformance import LOGISTIC, LR, train

EPOCHS = {"local_epochs": 2, "batch_size": 4}
RUN = TABLE | {"algorithm": {"name": "Scaffold", "lr": 0.01}, "selection": {"name": "Uniform", "m": 2}}
TOP = {"name": "TopK", "fraction": 0.01}


@dataclass(frozen=True)
class Mutable(fm.codecs.Codec):
    numbers: list = field(default_factory=list)


@pytest.mark.parametrize(
    ("algorithm", "options", "sentence"),
    [
        (
            fm.FedAvg,
            {"uplink": {"dleta": TopK(0.1)}},
            "run: 'uplink' must name vectors that FedAvg uploads (delta), got 'dleta' (did you mean 'delta'?)",
        ),
        (
            fm.FedNova,
            {"uplink": {"tau": TopK(0.1)}},
            "Cannot use uplink= for 'tau' of FedNova because it is no vector of the model's size; leave it out",
        ),
        (
            fm.Scaffold,
            {"downlink": {"y": TopK(0.1)}},
            "run: 'downlink' must name vectors that Scaffold sends to clients (x, c), got 'y'",
        ),
        (
            fm.FedAvg,
            {"downlink": ErrorFeedback(TopK(0.1))},
            "Cannot use downlink=ErrorFeedback(codec=TopK(fraction=0.1)) because clients are sent the difference",
        ),
        (
            fm.Scaffold,
            {"uplink": {"change": ErrorFeedback(TopK(0.1))}},
            "Cannot use error feedback for 'change' of Scaffold because it is a client's state or the change of one",
        ),
        (
            fm.Mime,
            {"uplink": {"gradient": ErrorFeedback(TopK(0.1))}},
            "Cannot use error feedback for 'gradient' of Mime because clients keep no state in the extra phase",
        ),
        (fm.FedAvg, {"uplink": "TopK"}, "run: 'uplink' must be a codec of fm.codecs, a list of them, or a mapping"),
        (fm.FedAvg, {"uplink": []}, "run: 'uplink' must be a codec of fm.codecs, a list of them, or a mapping"),
        (fm.FedAvg, {"downlink": {}}, "run: 'downlink' must be a codec of fm.codecs, a list of them, or a mapping"),
        (fm.FedAvg, {"uplink": TopK}, "run: 'uplink' must be a codec of fm.codecs, a list of them, or a mapping"),
        (fm.FedAvg, {"uplink": Mutable()}, "Cannot use uplink=Mutable(numbers=[]) because its fields may change"),
        (
            fm.FedAvg,
            {"downlink": Quantize(4), "selection": fm.Oort(m=3)},
            "Cannot select with Oort because its clients report losses at x, of which downlink=Quantize(",
        ),
    ],
)
def test_mistakes_are_refused(algorithm, options, sentence):
    with pytest.raises(ValueError) as caught:
        train(LOGISTIC, algorithm(lr=LR), "loop", **options, **EPOCHS)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("tracked", "sentence"),
    [
        (("chnage",), "Mine: 'tracked' must name uploads (delta, change), got 'chnage'"),
        ("change", "Mine: 'tracked' must be a tuple of names, got 'change'"),
    ],
)
def test_what_is_tracked_must_be_uploaded(tracked, sentence):
    algorithm = type("Mine", (fm.Scaffold,), {"tracked": tracked})(lr=LR)
    with pytest.raises(ValueError) as caught:
        train(LOGISTIC, algorithm, "loop", **EPOCHS)
    assert str(caught.value) == sentence


def built(**options):
    settings = config.parse(config.RunConfig, RUN | options)
    return settings.arguments(settings.algorithm, settings.selection, settings.seed)


def test_tables_are_the_objects_of_the_same_name():
    assert built()["uplink"] is built()["downlink"] is None
    assert built(uplink=TOP)["uplink"] == TopK(0.01)
    assert built(downlink={"name": "Quantize", "bits": 4})["downlink"] == Quantize(4)
    chain = [{"name": "Rotate"}, {"name": "Quantize", "bits": 4}]
    assert built(uplink=chain)["uplink"] == [Rotate(), Quantize(4)]
    assert built(uplink={"delta": TOP, "change": chain})["uplink"] == {
        "delta": TopK(0.01),
        "change": [Rotate(), Quantize(4)],
    }
    assert built(uplink={"name": "ErrorFeedback", "codec": TOP})["uplink"] == ErrorFeedback(TopK(0.01))
    assert built(uplink={"name": "ErrorFeedback", "codec": chain})["uplink"] == ErrorFeedback([Rotate(), Quantize(4)])


@pytest.mark.parametrize(
    ("table", "codec"),
    [
        ({"name": "ErrorFeedback", "codec": "Sign"}, ErrorFeedback(Sign())),
        ({"name": "ErrorFeedback", "codec": ["Rotate", "Sign"]}, ErrorFeedback([Rotate(), Sign()])),
        ({"name": "Chain", "codecs": ["Rotate", {"name": "Quantize", "bits": 4}]}, Chain([Rotate(), Quantize(4)])),
        (
            {"name": "ErrorFeedback", "codec": {"name": "Chain", "codecs": ["Rotate", "Float16"]}},
            ErrorFeedback(Chain([Rotate(), Float16()])),
        ),
    ],
)
def test_a_name_alone_is_a_table_within_a_codec(table, codec):
    assert built(uplink=table)["uplink"] == codec


def test_a_codec_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport torch\nfrom fedmos.codecs import Codec\n\n\n"
        "@dataclass(frozen=True)\nclass Brain(Codec):\n    def declare(self, size):\n"
        "        return {'values': (torch.bfloat16, size)}\n\n    def encode(self, v, key):\n"
        "        return {'values': v.to(torch.bfloat16)}\n\n    def decode(self, fields, size, key):\n"
        "        return fields['values'].float()\n"
    )
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(RUN | {"uplink": {"delta": {"name": "mine.py:Brain"}}}))
    settings = config.load(config.RunConfig, path)
    result = settings.run(settings.algorithm, settings.selection, settings.seed, out=tmp_path / "run")
    assert result.history[0].bytes_up == 2 * (650 * 2 + 650 * 4)
    assert fm.Result.load(tmp_path / "run").info["uplink"] == {"delta": "Brain()"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"uplink": {"name": "Topk", "fraction": 0.1}}, "uplink.name: must be one of "),
        ({"uplink": {"delta": {"name": "TopK"}}}, "uplink.delta: TopK needs fraction"),
        ({"uplink": {"delta": TOP | {"k": 3}}}, "uplink.delta.k: TopK has no such field"),
        ({"uplink": [TOP, {"name": "Quantize", "bits": 99}]}, "uplink.1.bits: must be"),
        ({"uplink": {"name": "ErrorFeedback", "codec": "Sing"}}, "uplink.codec.name: must be one of "),
        ({"uplink": {"name": "mine:x"}}, "uplink.name: Cannot load mine because"),
        ({"downlink": 3}, "configuration: downlink: must be a table, got 3"),
        ({"downlink": {}}, "configuration: downlink: must be a table with a name, or have 1 to 1,000 names of vectors"),
        ({"downlink": {"z": TOP}}, "run: 'downlink' must name vectors that Scaffold sends to clients (x, c), got 'z'"),
    ],
)
def test_errors_name_the_place(options, sentence):
    with pytest.raises(ValueError) as caught:
        built(**options)
    assert str(caught.value).startswith(sentence)


def test_a_field_can_be_overridden(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(toml.dumps(RUN | {"uplink": {"delta": TOP}}))
    settings = config.load(config.RunConfig, path, ["uplink.delta.fraction=0.2"])
    assert settings.arguments(settings.algorithm, settings.selection, 0)["uplink"] == {"delta": TopK(0.2)}


def test_a_method_of_a_comparison_has_its_own():
    method = {"algorithm": {"name": "FedAvg", "lr": 0.01}, "selection": {"name": "Uniform", "m": 2}}
    settings = config.parse(
        config.CompareConfig,
        TABLE
        | {
            "title": "Codecs",
            "seeds": [0],
            "target": {"accuracy": 0.5},
            "uplink": TOP,
            "methods": [
                method | {"label": "a"},
                method | {"label": "b", "uplink": {"name": "Quantize", "bits": 4}, "downlink": TOP},
            ],
        },
    )
    settings.check()
    runs = runner.ConfiguredRuns(settings)
    a, b = (runs.arguments(runner.PlannedRun(label, (), 0), {}) for label in ("a", "b"))
    assert (a["uplink"], a["downlink"]) == (TopK(0.01), None)
    assert (b["uplink"], b["downlink"]) == (Quantize(4), TopK(0.01))


@pytest.mark.parametrize(("name", "methods", "plain"), [("mnist", 28, 4), ("cifar10", 8, 2)])
def test_the_examples_have_every_method_with_every_codec(name, methods, plain):
    path = Path(__file__).parents[2] / "examples" / f"{name}_codecs.toml"
    small = {"data": {"name": "digits", "clients": 60}, "model": {"name": "cnn_digits"}}
    settings = config.parse(config.CompareConfig, tomllib.loads(path.read_text("utf-8")) | small)
    settings.check()
    assert len(settings.methods) == methods
    assert sum(method.uplink is None for method in settings.methods) == plain
