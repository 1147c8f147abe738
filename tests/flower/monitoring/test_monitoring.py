"""What an operator sees of a server app: metrics, health, the status file, `fedmos deploy status`, structured logs."""

from __future__ import annotations

import json
import logging
import re
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Error, Message
from rich.console import Console
from typer.testing import CliRunner

from fedmos.cli.deploy import app
from fedmos.flower import Deploy, wire
from fedmos.flower.client_errors import ClientErrorCode
from fedmos.flower.flower_log import log_through_flower
from fedmos.flower.local.local_deployment import free_ports
from fedmos.flower.monitoring.endpoint import health, metrics_endpoint
from fedmos.flower.monitoring.exposition import exposition
from fedmos.flower.monitoring.monitor import Monitor
from fedmos.flower.monitoring.status import STATUS, ClientStatus, DeploymentStatus, is_served
from fedmos.storage.files import StorageError
from helpers.flower_runs import EVERYONE, ROUNDS, arguments, assert_same

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.e+-]+|NaN)')


def parsed(text: str) -> dict[str, float]:
    """Parse metrics strictly: every sample is of a declared type, and there are no two of one name and labels."""
    found, kinds = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert kinds[match[1]] == ("counter" if match[1].endswith("_total") else "gauge")
            key = match[1] + (f"{{{match[2]}}}" if match[2] else "")
            assert key not in found
            found[key] = float(match[3])
    return found


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """A terminal in which no cell of the table is wrapped."""
    monkeypatch.setattr("fedmos.cli.deploy.status.console", Console(width=300))


def shown(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", *words])
    return result.exit_code, result.output


def lines_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_visible_while_it_goes_on(deployed):
    """The endpoint, the status file and the command agree with the records; client 1 always fails."""
    (port,), seen = free_ports(1), []
    made = deployed(arguments(selection=EVERYONE), metrics=f"127.0.0.1:{port}", quarantine="off")

    def tamper(request: Message, reply: Message) -> Message:
        train = request.metadata.message_type == wire.TRAIN
        if train and request.metadata.dst_node_id == 101:
            return Message(Error(int(ClientErrorCode.NOT_FINITE), "…"), reply_to=request)
        return reply

    made.network.tamper = tamper

    def look(record):
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as response:
            state = json.load(response)
        seen.append((record, parsed(text), state, shown(str(made.folder / "run"))))

    result = made.run(callbacks=[look])
    assert len(seen) == ROUNDS
    for record, metrics, state, _ in seen[1:]:  # the callback of the user comes before the monitor's
        before = result.history[record.round - 2]
        assert metrics["fedmos_round"] == before.round == state["round"]
        assert metrics["fedmos_rounds"] == ROUNDS
        assert metrics["fedmos_accuracy"] == before.accuracy
        assert metrics["fedmos_test_loss"] == before.test_loss
        assert metrics["fedmos_round_seconds"] == before.seconds
        assert metrics["fedmos_waiting"] == 0
        assert metrics["fedmos_clients_connected"] == 6
        assert metrics['fedmos_refused_total{client="1",reason="not_finite"}'] == record.round
        assert metrics['fedmos_replies_total{client="0"}'] == record.round
        assert state["state"] == "training"
    down, up = (sum(getattr(r, f"bytes_{way}") for r in result.history) for way in ("down", "up"))
    code, text = shown(str(made.folder / "run"))
    assert code == 0
    assert f"finished, {ROUNDS} of {ROUNDS} rounds" in text
    assert f"{ROUNDS} not_finite" in text
    assert "its update is not finite" in text
    status = DeploymentStatus.read(made.folder / "run")
    assert (status.bytes_down, status.bytes_up) == (down, up)
    code, text = seen[1][3]
    assert code == 0
    assert f"training, 1 of {ROUNDS} rounds" in text
    with pytest.raises(OSError, match="refused"):  # the endpoint ends with the run
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_the_report_of_a_run_that_goes_on(deployed):
    """`fedmos report RUN` and its page that reloads itself, after each round."""
    from fedmos.report.page import html
    from fedmos.report.running import running_study
    from fedmos.report.study import read_study

    made, pages = deployed(), []

    def look(record):
        if record.round > 1:
            pages.append((html(read_study([made.folder / "run"], None, None)), running_study(made.folder / "run", 3.0)))

    made.run(callbacks=[look])
    assert len(pages) == ROUNDS - 1
    assert all("FedAvg" in page for page, _ in pages)
    assert [study.progress.rounds for _, study in pages] == [2, 3, 4]


def test_an_outage_is_visible():
    monitor = Monitor(["a", "b"], "0" * 32)
    monitor.begin(9, 3)
    assert health(monitor)[0] == 200
    monitor.wait("Round 4", {1}, 1)
    code, content = health(monitor)
    assert (code, content["state"], content["waits_for"]) == (503, "waiting", ["b"])
    metrics = parsed(exposition(monitor.snapshot()))
    assert metrics["fedmos_waiting"] == 1
    monitor.go_on()
    assert health(monitor)[0] == 200


def test_a_served_outage_answers_503(caplog):
    (port,) = free_ports(1)
    monitor = Monitor(["a"])
    monitor.wait("The start", {0}, 1)
    with caplog.at_level(logging.WARNING, "fedmos"), metrics_endpoint(f"127.0.0.1:{port}", monitor):
        with pytest.raises(HTTPError) as caught:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=60)
        caught.value.close()
        assert caught.value.code == 503
        with pytest.raises(ValueError, match=f"Cannot serve .*{port}' because Address already in use; use another"):
            metrics_endpoint(f"127.0.0.1:{port}", monitor).__enter__()
    assert not caplog.messages
    with metrics_endpoint(f"0.0.0.0:{port}", monitor):
        assert "without authentication" in caplog.messages[0]


def test_metrics_escape_the_names_of_clients():
    status = DeploymentStatus("", clients=[ClientStatus('a"\\\n', refused={"invalid": 2})])
    assert parsed(exposition(status))[r'fedmos_refused_total{client="a\"\\\n",reason="invalid"}'] == 2


@pytest.mark.parametrize("given", ["9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "a b:1", 9464])
def test_an_invalid_address_is_refused(given):
    with pytest.raises(ValueError, match="Deploy: 'metrics' must be HOST:PORT or None, got"):
        Deploy(metrics=given)


def test_the_status_of_something_else(tmp_path):
    assert "has no status.json" in str(CliRunner().invoke(app, ["status", str(tmp_path)]).exception)
    (tmp_path / STATUS).write_text('{"run": 1, "clients": 3}')
    assert "is damaged" in str(CliRunner().invoke(app, ["status", str(tmp_path)]).exception)


def test_a_server_app_that_is_gone(deployed):
    """A killed server app leaves "training" in its status; the command sees that nobody holds the folder."""
    made = deployed()
    made.run()
    status = DeploymentStatus.read(made.folder / "run")
    status.state = "training"
    status.write(made.folder / "run")
    code, text = shown(str(made.folder / "run"))
    assert code == 1
    assert "its server app is gone; start the run again (fedmos deploy start)" in text
    status.state = "finished"
    status.write(made.folder / "run")
    assert shown(str(made.folder / "run"), "--watch")[0] == 0  # ends with the run


def test_a_server_app_that_waits_at_the_start_has_the_folder(deployed, monkeypatch):
    """Its run has not begun. The command shows that it waits, and another server app is refused."""
    made, seen = deployed(arguments(rounds=1, system=fm.System(quorum=1.0)), wait=10.0), []
    made.network.nodes[100].online = False
    listed = made.network.get_nodes

    def get_nodes() -> Any:
        if not seen:
            seen.append(is_served(made.folder / "run"))
            with pytest.raises(StorageError, match="because another run is in it"):
                made.run()
        made.network.nodes[100].online = True
        return listed()

    made.network.get_nodes = get_nodes
    assert len(made.run().history) == 1
    assert seen == [True]
    assert not is_served(made.folder / "run")


def test_a_disk_full_at_a_client(deployed, caplog):
    """The client reports a code; after a few attempts the round goes on without it, and later rounds with it."""
    given = arguments(selection=EVERYONE, rounds=3)
    made = deployed(given)

    def tamper(request: Message, reply: Message) -> Message:
        full = request.metadata.message_type == wire.TRAIN and wire.round_of(request.content) == 1
        if full and request.metadata.dst_node_id == 102:
            return Message(Error(int(ClientErrorCode.STORAGE), "…"), reply_to=request)
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert [r.late for r in result.history] == [[], [2], []]
    expected = "Client '2' cannot answer in round 2, after 5 attempts: it cannot write its files (code 130)"
    assert [line for line in caplog.messages if line.startswith(expected)]
    assert "it cannot write its files" in shown(str(made.folder / "run"))[1]


class TestLog:
    def test_every_line_is_json(self, capsys):
        flower = logging.getLogger("flwr")
        before = list(flower.handlers)
        stream = logging.StreamHandler()
        flower.handlers[:] = [stream]
        try:
            with log_through_flower("json"):
                logging.getLogger("fedmos").warning('Round %d: "%s"\n', 3, "é")
                flower.info("started")
                try:
                    raise ValueError("no")
                except ValueError:
                    logging.getLogger("fedmos").exception("failed")
            assert flower.handlers == [stream]
        finally:
            flower.handlers[:] = before
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [(line["level"], line["logger"]) for line in lines] == [
            ("WARNING", "fedmos"), ("INFO", "flwr"), ("ERROR", "fedmos"),
        ]  # fmt: skip
        assert lines[0]["message"] == 'Round 3: "é"\n'
        assert lines[2]["exception"].endswith("ValueError: no")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[0]["time"])

    def test_the_environment_chooses_it_for_clients(self, monkeypatch):
        monkeypatch.setenv("FEDMOS_LOG", "json")
        with log_through_flower():
            names = [type(h.formatter).__name__ for h in logging.getLogger("fedmos").handlers]
        assert "JsonFormatter" in names

    def test_another_value_of_the_environment_is_named(self, monkeypatch, caplog):
        monkeypatch.setenv("FEDMOS_LOG", "jsno")
        with caplog.at_level(logging.WARNING, "fedmos"), log_through_flower():
            names = [type(h.formatter).__name__ for h in logging.getLogger("fedmos").handlers]
        assert "JsonFormatter" not in names
        assert "FEDMOS_LOG must be 'text' or 'json', got 'jsno'; the log is text" in caplog.messages


def test_monitoring_does_not_change_bits(deployed):
    assert_same(deployed(metrics=f"127.0.0.1:{free_ports(1)[0]}", log="json").run(), fm.run(**arguments()))
