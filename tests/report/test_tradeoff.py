"""The figure of a metric over megabytes, and the column of codecs."""

from __future__ import annotations

import json
import re

import pytest

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Quantize, Rotate, TopK
from fedmos.experiments.seed_statistics import MethodResult
from fedmos.experiments.table import ComparisonTable
from fedmos.experiments.table_formats import as_csv, as_markdown
from fedmos.report import page
from fedmos.report.checks import ReportSource
from fedmos.report.curves import Curve
from fedmos.report.study import ReportStudy
from fedmos.report.tradeoff import tradeoff
from helpers import browser
from helpers.histories import history

CODED = {"uplink": "ErrorFeedback(codec=TopK(fraction=0.01))", "downlink": {"x": ["Rotate()", "Quantize(bits=4)"]}}


def line(megabytes: list[float], mean: list[float]) -> Curve:
    rounds = list(range(1, len(mean) + 1))
    return Curve(
        label="",
        rounds=rounds,
        megabytes=megabytes,
        seconds=None,
        mean=mean,
        low=mean,
        high=mean,
        seeds=[1] * len(mean),
    )


def test_the_front_is_what_no_method_reaches_with_fewer_megabytes():
    cheap, dear = line([1, 2, 3, 4], [0.2, 0.5, 0.4, 0.6]), line([2, 4, 6], [0.3, 0.6, 0.9])
    found = tradeoff([cheap, line([], []), dear], lower=False)
    assert found.methods[0] == ([1, 2, 4], [0.2, 0.5, 0.6])
    assert found.methods[1] is None
    assert found.front == [(1, 0.2, 0), (2, 0.5, 0), (4, 0.6, 0), (6, 0.9, 2)]
    assert found.stretches() == [((1, 0.2, 0), (4, 0.6, 0)), ((6, 0.9, 2), (6, 0.9, 2))]
    losses = tradeoff([line([1, 2], [0.9, 0.3]), line([1, 3], [0.8, 0.3])], lower=True)
    assert losses.front == [(1, 0.8, 1), (2, 0.3, 0)]
    assert tradeoff([], lower=True).front == tradeoff([], lower=True).stretches() == []


def study(**infos: dict) -> ReportStudy:
    rows = [
        MethodResult(
            label=label,
            lr=0.1,
            runs={0: history([0.1, 0.5, 0.6 + n / 10])},
            infos={0: {"clients": 10, "rounds": 3, **info}},
        )
        for n, (label, info) in enumerate(infos.items())
    ]
    table = ComparisonTable(metric="accuracy", target=0.55, baseline=rows[0].label, results=rows)
    source = ReportSource(folder="made up", results=rows, target=("accuracy", 0.55), data=None, text="")
    return ReportStudy("Made up", "Note.", table, [source])


def test_tables_have_a_column_where_messages_are_coded():
    coded = study(A={}, B=CODED).table
    cells = [line.split("|")[1:4] for line in as_markdown(coded).splitlines()]
    words = r"up ErrorFeedback(TopK(0.01)), down x \[Rotate(), Quantize(4)\]"
    assert [one[2].strip() for one in cells] == ["codec", "--:", "none", words]
    assert "codec" in as_csv(coded).splitlines()[0]
    plain = study(A={}, B={"uplink": None}).table
    assert "codec" not in as_markdown(plain)
    assert "codec" not in as_csv(plain)
    assert "codec" not in plain.to_dict()["methods"][0]


def test_the_page_has_the_figure_where_messages_are_coded():
    text = page.html(study(A={}, B=CODED))
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert data["traded"]["front"] == {"megabytes": [3.0, 6.0, 9.0], "values": [0.1, 0.5, 0.7], "methods": [0, 0, 1]}
    assert data["traded"]["methods"][1] == {"megabytes": [3.0, 6.0, 9.0], "values": [0.1, 0.5, 0.7]}
    assert '<div class="plot" id="plot-traded"' in text
    assert "<h2>Test accuracy over megabytes</h2>" in text
    plain = page.html(study(A={}, B={}))
    assert 'id="plot-traded"' not in plain
    assert json.loads(re.search(r'id="data">(.*?)</script>', plain)[1])["traded"] is None


def test_codecs_are_recorded_as_users_write_them(quick):
    uplink = {"delta": ErrorFeedback([Rotate(block=16), Quantize(4)])}
    result = quick(rounds=1, uplink=uplink, downlink=[Rotate(), TopK(0.5)])
    assert result.info["uplink"] == {"delta": "ErrorFeedback(codec=[Rotate(block=16), Quantize(bits=4)])"}
    row = MethodResult.of("A", 0.1, {0: result})
    assert row.codecs == "up delta ErrorFeedback([Rotate(16), Quantize(4)]), down [Rotate(), TopK(0.5)]"


def test_runs_that_differ_in_their_codec_are_several_methods(quick, tmp_path):
    from fedmos.report.study import read_study

    for number, uplink in enumerate((None, Quantize(4), Quantize(8))):
        quick(rounds=2, uplink=uplink, out=tmp_path / str(number), label="FedAvg")
    found = read_study([tmp_path / str(number) for number in range(3)])
    assert len(found.results) == 3
    assert [result.codecs for result in found.results] == ["", "up Quantize(4)", "up Quantize(8)"]


@pytest.mark.browser
@browser.needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_is_drawn(tmp_path, dark):
    """The front lies behind the methods, which the controls hide."""
    file = tmp_path / "report.html"
    file.write_text(page.html(study(A={}, B=CODED)), "utf-8")
    found = browser.ask(
        file,
        """
        const plot = document.getElementById("plot-traded");
        const traces = () => plot.querySelectorAll(".scatterlayer .trace").length;
        answer.before = [traces(), plot.querySelector(".xtitle").textContent, plot.layout.xaxis.type];
        document.querySelector("input[name=method]").click(); await settled();
        answer.hidden = traces();
        """,
        1280,
        800,
        dark,
    )
    assert found["faults"] == []
    assert found["before"] == [3, "megabytes sent, both ways", "log"]
    assert found["hidden"] == 2


def test_comparisons_in_python_have_the_column(quick, tmp_path):
    shared = {"local_steps": 1, "batch_size": 4, "selection": fm.Uniform(m=2), "rounds": 2, "seeds": [0]}
    data = fm.datasets.load("digits").partition(fm.partition.ByClass(classes=2), clients=6, seed=0)
    methods = {
        "plain": {"algorithm": fm.FedAvg(lr=0.1)},
        "4 bits": {"algorithm": fm.FedAvg(lr=0.1), "uplink": Quantize(4)},
    }
    table = fm.compare(methods, model=fm.models.cnn_digits(), data=data, **shared)
    assert "up Quantize(4)" in str(table)
