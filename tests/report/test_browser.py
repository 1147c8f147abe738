"""The report in a browser: what a reader sees, and what the controls do."""

import pytest

from fedmos.experiments.seed_statistics import MethodResult
from fedmos.experiments.table import ComparisonTable
from fedmos.report import page
from fedmos.report.checks import ReportSource
from fedmos.report.study import ReportStudy
from helpers import browser
from helpers.histories import history
from helpers.studies import large_study

pytestmark = [pytest.mark.browser, browser.needs_browser]
OVERFLOW = "answer.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;"


def study(**methods):
    """A study of made-up accuracies, by label: a list of values, or several for several seeds."""
    info = {"clients": 10, "rounds": 4}
    rows = []
    for label, values in methods.items():
        runs = {seed: history(one) for seed, one in enumerate(values if isinstance(values[0], list) else [values])}
        rows.append(MethodResult(label=label, lr=0.1, runs=runs, infos=dict.fromkeys(runs, info)))
    table = ComparisonTable(metric="accuracy", target=0.7, baseline=rows[0].label, results=rows)
    source = ReportSource(folder="made up", results=rows, target=("accuracy", 0.7), data=None, text="")
    return ReportStudy("Made up", "Note.", table, [source])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The report of three methods; two of them coincide."""
    file = tmp_path_factory.mktemp("small") / "small.html"
    made = study(A=[[0.1, 0.5, 0.75, 0.8], [0.2, 0.6, 0.75, 0.9]], B=[0.15, 0.55, 0.75, 0.85], C=[0.1, 0.2, 0.3, 0.4])
    file.write_text(page.html(made), "utf-8")
    return file


@pytest.mark.parametrize(("width", "height"), [(1280, 800), pytest.param(390, 844, marks=pytest.mark.extended)])
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_the_chart_is_above_the_fold(written, width, height, dark):
    found = browser.ask(
        written,
        OVERFLOW + "answer.bottom = document.querySelector('.plot').getBoundingClientRect().bottom;"
        "answer.first = document.querySelector('.plot').id;"
        "answer.paper = getComputedStyle(document.body).backgroundColor;",
        width,
        height,
        dark,
    )
    assert found["faults"] == []
    assert found["overflow"] == 0
    assert found["first"] == "plot-train_loss"
    assert found["bottom"] <= height
    assert found["paper"] == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_controls(written):
    found = browser.ask(
        written,
        """
        const plots = [...document.querySelectorAll(".plot")];
        answer.plots = plots.map((p) => [p.id, p.querySelectorAll(".scatterlayer .trace").length]);
        const plot = document.getElementById("plot-train_loss");
        const lines = () => plot.querySelectorAll(".scatterlayer .trace").length;
        const title = () => plot.querySelector(".xtitle").textContent;
        const click = async (selector) => { document.querySelector(selector).click(); await settled(); };
        answer.before = [lines(), title()];
        await click("input[name=method]"); answer.hidden = lines();
        await click("input[name=method]"); answer.shown = lines();
        await click("input[value=megabytes]"); answer.megabytes = title();
        await click("input[value=seconds]"); answer.seconds = title();
        await click("input[name=logY]"); await click("input[name=logX]");
        answer.logarithmic = [plot.layout.xaxis.type, plot.layout.yaxis.type];
        const slider = document.querySelector("input[name=smoothing]");
        slider.value = 5; slider.dispatchEvent(new Event("input")); await settled();
        answer.smoothed = [lines(), document.getElementById("note-train_loss").textContent];
        const names = () => [...document.querySelectorAll("#methods label:not([hidden])")].map((row) => row.textContent);
        const sort = document.querySelector("select[name=sort]");
        sort.value = "final"; sort.dispatchEvent(new Event("change")); await settled();
        answer.sorted = names();
        const filter = document.querySelector("input[name=filter]");
        filter.value = "AVG"; filter.dispatchEvent(new Event("input"));
        answer.filtered = names();
        await click("[data-all=hide]");
        answer.some = [...document.querySelectorAll("input[name=method]:checked")].length;
        filter.value = ""; filter.dispatchEvent(new Event("input"));
        await click("[data-all=hide]");
        answer.none = lines();
        answer.annotation = plot.querySelector(".annotation-text").textContent;
        answer.unlabelled = [...document.querySelectorAll("main input, main select")]
          .filter((i) => i.labels.length === 0 && !i.ariaLabel).map((i) => i.outerHTML);
        """,
    )
    assert found["faults"] == []
    metrics = {"train_loss", "train_accuracy", "test_loss", "accuracy"}
    assert dict(found["plots"]).keys() == {f"plot-{name}" for name in metrics | {"served", "split", "chosen"}}
    assert all(count > 0 for _, count in found["plots"])
    assert found["before"] == [6, "round"]
    assert (found["hidden"], found["shown"], found["none"]) == (4, 6, 0)
    assert (found["megabytes"], found["seconds"]) == ("megabytes sent, both ways", "simulated seconds")
    assert found["logarithmic"] == ["log", "log"]
    assert found["smoothed"][0] == 9
    assert "Lines are smoothed; pale lines are as measured." in found["smoothed"][1]
    assert found["sorted"] == ["<SCAFFOLD> & co", "FedAvg", "hopeless"]
    assert found["filtered"] == ["FedAvg"]
    assert found["some"] == 2
    assert found["annotation"] == "target 2.1"
    assert found["unlabelled"] == []


def test_names_at_line_ends_and_lines_that_coincide(small):
    found = browser.ask(
        small,
        """
        const plot = document.getElementById("plot-accuracy");
        answer.labels = plot.layout.annotations.filter((a) => a.name === "end").map((a) => [a.text, a.y]);
        answer.note = document.getElementById("note-accuracy").textContent;
        answer.dashes = plot.data.filter((t) => !t.fill).map((t) => [t.name, t.line.dash]);
        document.querySelector("input[name=method][value='1']").click(); await settled();
        answer.alone = document.getElementById("note-accuracy").hidden;
        """,
    )
    assert found["faults"] == []
    assert [text for text, _ in found["labels"]] in (["A", "B", "C"], ["B", "A", "C"])
    heights = [y for _, y in found["labels"]]
    assert heights[0] - heights[1] > 0.03  # apart, though the lines coincide
    assert found["note"] == "A and B coincide exactly."
    assert found["dashes"] == [["A", "solid"], ["B", "12px,12px"], ["C", "solid"]]
    assert found["alone"]


def test_one_tooltip_compares_all_methods(small):
    found = browser.ask(
        small,
        """
        const plot = document.getElementById("plot-accuracy"), { xaxis, _size } = plot._fullLayout;
        const box = plot.getBoundingClientRect();
        const at = { clientX: box.left + _size.l + xaxis.d2p(2) + 3, clientY: box.top + _size.t + 40, bubbles: true };
        plot.querySelector(".nsewdrag").dispatchEvent(new PointerEvent("pointermove", at));
        const rows = () => [...document.querySelectorAll(".tip tr")].map((row) => [...row.cells].map((c) => c.textContent));
        answer.round = [document.querySelector(".tip b").textContent, rows()];
        plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        answer.next = document.querySelector(".tip b").textContent;
        plot.dispatchEvent(new PointerEvent("pointerleave"));
        answer.gone = document.querySelector(".tip").hidden;
        """,
    )
    assert found["faults"] == []
    assert found["round"][0] == "Round 2"
    assert [row[1:3] for row in found["round"][1]] == [["A", "0.5500"], ["B", "0.5500"], ["C", "0.2000"]]
    assert found["round"][1][0][3] == "0.500–0.600"
    assert found["next"] == "Round 3"
    assert found["gone"]


def test_tables_mark_the_best_sort_and_never_break_a_number(written):
    found = browser.ask(
        written,
        OVERFLOW
        + """
        const outcome = document.getElementById("outcome");
        const names = () => [...outcome.tBodies[0].rows].map((row) => row.cells[0].textContent);
        const heads = outcome.tHead.rows[0].cells;
        answer.best = [...outcome.querySelectorAll("td.best")].map((cell) =>
          [heads[cell.cellIndex].textContent, cell.parentElement.cells[0].textContent]);
        answer.broken = [];
        for (const cell of document.querySelectorAll("td")) {
          const at = cell.textContent.search(/[0-9.]+ ± [0-9.]+/);
          if (at < 0 || cell.getClientRects().length === 0) continue;
          const range = document.createRange(), text = cell.firstChild;
          range.setStart(text, at);
          range.setEnd(text, at + cell.textContent.match(/[0-9.]+ ± [0-9.]+/)[0].length);
          if (range.getClientRects().length !== 1) answer.broken.push(cell.textContent);
        }
        answer.hint = getComputedStyle(outcome.closest(".scroll-box").querySelector(".swipe")).display;
        const visible = () => [...outcome.querySelectorAll("thead th")].filter((h) => h.offsetWidth).length;
        answer.columns = [visible()];
        document.querySelector("[data-columns]").click();
        answer.columns.push(visible());
        answer.given = names();
        const final = [...outcome.querySelectorAll("thead th")].find((head) => head.textContent.startsWith("final"));
        final.querySelector("button").click();
        answer.sorted = [names(), final.ariaSort];
        """,
        390,
        844,
    )
    assert found["faults"] == []
    assert found["overflow"] == 0
    assert ["final train_loss", "<SCAFFOLD> & co"] in found["best"]
    assert found["broken"] == []
    assert found["hint"] == "block"
    assert found["columns"][1] > found["columns"][0]
    assert found["given"] == ["FedAvg", "<SCAFFOLD> & co", "hopeless"]
    assert found["sorted"] == [["<SCAFFOLD> & co", "FedAvg", "hopeless"], "ascending"]


def test_many_methods_can_be_read(tmp_path):
    (tmp_path / "many.html").write_text(page.html(large_study(runs=25, rounds=200)), "utf-8")
    found = browser.ask(
        tmp_path / "many.html",
        """
        const plot = document.getElementById("plot-accuracy");
        answer.drawn = [plot.data.length, document.getElementById("picked").textContent];
        answer.note = document.getElementById("drawn-first").textContent;
        document.querySelector("[data-all=show]").click(); await settled();
        const labels = plot.layout.annotations.filter((a) => a.name === "end").map((a) => a.y * plot._fullLayout._size.h);
        answer.gaps = labels.slice(1).map((y, k) => labels[k] - y);
        document.querySelector("input[value=multiples]").click(); await settled();
        answer.panels = plot.querySelectorAll(".cartesianlayer .subplot").length;
        """,
    )
    assert found["faults"] == []
    assert found["drawn"] == [8, "8 of 25"]
    assert found["note"].startswith("8 of 25 methods are drawn at first, the best ones.")
    assert len(found["gaps"]) > 20
    assert min(found["gaps"]) > 12
    assert found["panels"] == 25


def test_long_words_do_not_widen_the_page(tmp_path):
    made = large_study(runs=1, rounds=3)._replace(title="T" * 300, note="N" * 300)
    (tmp_path / "long.html").write_text(page.html(made), "utf-8")
    assert browser.ask(tmp_path / "long.html", OVERFLOW)["overflow"] == 0


@pytest.mark.extended
def test_many_long_runs_are_drawn_by_few_points(tmp_path, large_page):
    """`make bench-limits` measures the time."""
    (tmp_path / "large.html").write_text(large_page, "utf-8")
    found = browser.ask(
        tmp_path / "large.html",
        "const traces = [...document.querySelectorAll('.plot')].flatMap((plot) => plot.data);"
        "answer.points = traces.map((trace) => trace.x.length).reduce((sum, n) => sum + n, 0);",
    )
    assert found["faults"] == []
    assert 0 < found["points"] <= 25_000
