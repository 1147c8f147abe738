"""A client's installation: its own data, the app that it runs, and the checks and the trial of it."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
from typer.testing import CliRunner

import fedmos as fm
from fedmos.cli.commands import app
from fedmos.flower import wire
from fedmos.flower.client import client_app
from fedmos.flower.local import doctor, doctor_files, doctor_network, superexec
from fedmos.flower.local.certificates import make_certificates, make_secret
from fedmos.flower.local.local_deployment import free_ports
from fedmos.flower.local.pinned_app import AppGuard, AppRefusedError, hash_of
from fedmos.flower.local.prepare_client import prepare_client
from helpers.flower_network import Network
from helpers.study import HOSPITALS, write_study, write_table


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["deploy", *map(str, arguments)])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.output


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The server's keys, its app, and the installation of hospital-a; not to be changed."""
    folder = tmp_path_factory.mktemp("study")
    certificates = make_certificates(folder / "server", ["localhost"])
    make_secret(certificates.folder)
    run("init", folder / "study", write_study(folder), "--keys", folder / "server", "--state", folder / "state")
    table = {"file": str(write_table(folder / "a.csv", 60, 1))}
    prepare_client(
        folder / "hospital-a",
        HOSPITALS[0],
        "localhost:1",
        certificates.authority,
        folder / "study",
        "state",
        9101,
        table,
    )
    return folder


@pytest.fixture
def hospital(study, tmp_path) -> Path:
    """A copy of the installation of hospital-a."""
    return Path(shutil.copytree(study / "hospital-a", tmp_path / "hospital-a"))


def edit(file: Path, before: str, after: str) -> Path:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return file


class TestPreparedClient:
    def test_its_files_are_private_and_complete(self, study, hospital):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in hospital.iterdir()}
        (fab,) = (name for name in modes if name.endswith(".fab"))
        assert modes == {
            **dict.fromkeys((fab, "hospital-a", "apps.secret", "client.toml"), 0o600),
            **dict.fromkeys(("ca.pem", "hospital-a.pub"), 0o644),
        }
        assert fab.split(".")[-2] == hash_of(hospital / fab)[:8]

    def test_its_file_is_never_replaced(self, study):
        with pytest.raises(FileExistsError, match="because it exists"):
            prepare_client(
                study / "hospital-a", "a", "localhost:1", study / "server/ca.pem", study / "study", "state", 9101, {}
            )

    @pytest.mark.parametrize(
        ("before", "after", "match"),
        [
            ("localhost:1", "localhost", "server: must be HOST:PORT"),
            ('client = "hospital-a"', 'client = "../x"', "client: must be a name"),
            ("[data]", "[dta]", "dta: unknown field"),
            ("# [policy]", "[policy]\nmin_batches = 3", "min_batches"),
            ("# [policy]", "[policy]\nmin_batch = 0", "min_batch: must be an integer ≥ 1"),
        ],
    )
    def test_faults_of_its_file_are_named(self, hospital, before, after, match):
        file = edit(hospital / "client.toml", before, after)
        done = CliRunner().invoke(app, ["deploy", "doctor", str(file), "--offline"])
        assert done.exit_code == 1
        assert match in done.output.replace("\n", " ")


class TestOwnData:
    def test_clients_train_on_their_own_tables(self, tmp_path, study, clock):
        """Three hospitals with files of their own: a CSV file, a parquet file and a function give the same model."""
        import pyarrow.csv
        import pyarrow.parquet

        results = {}
        for kind in ("csv", "parquet", "function"):
            network = Network(lambda: client_app(study / "study/study/run.toml"), tmp_path / kind, HOSPITALS)
            for i, (name, node) in enumerate(zip(HOSPITALS, network.nodes.values(), strict=True)):
                table = write_table(tmp_path / kind / f"{name}.csv", 60 + 15 * i, i)
                own = f'file = "{table}"'
                if kind == "parquet":
                    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table), table.with_suffix(".parquet"))
                    own = f'file = "{table.with_suffix(".parquet")}"'
                elif kind == "function":
                    own = 'function = "mine.py:load"'
                    (tmp_path / kind / "mine.py").write_text(OWN_CODE)
                file = tmp_path / kind / f"{name}.toml"
                file.write_text(f'client = "{name}"\nserver = "x:1"\nkey = "k"\napp = "a.fab"\n[data]\n{own}\n')
                node._config["config"] = str(file)
            results[kind] = self.deployed(network, study, tmp_path)
        assert {len(result.history) for result in results.values()} == {4}
        assert results["csv"].history[-1].accuracy > 0.6
        for kind in ("parquet", "function"):
            assert (results[kind].params == results["csv"].params).all(), kind

    @pytest.mark.parametrize("mended", ["file", "inputs"])
    def test_columns_in_another_order_are_refused(self, tmp_path, study, clock, caplog, mended):
        """The model would read age as pressure. The client is named until its file, or its list of inputs, is right."""
        network = Network(lambda: client_app(study / "study/study/run.toml"), tmp_path / "state", HOSPITALS)
        tables = [write_table(tmp_path / f"{name}.csv", 60 + 15 * i, i) for i, name in enumerate(HOSPITALS)]
        for table, node in zip(tables, network.nodes.values(), strict=True):
            file = table.with_suffix(".toml")
            file.write_text(
                f'client = "{table.stem}"\nserver = "x:1"\nkey = "k"\napp = "a.fab"\n[data]\nfile = "{table}"\n'
            )
            node._config["config"] = str(file)
        expected = self.deployed(network, study, tmp_path).params
        network = Network(lambda: client_app(study / "study/study/run.toml"), tmp_path / "again", HOSPITALS)
        for table, node in zip(tables, network.nodes.values(), strict=True):
            node._config["config"] = str(table.with_suffix(".toml"))
        right = tables[1].read_text()
        rows = [line.split(",") for line in right.splitlines()]
        tables[1].write_text("".join(f"{p},{s},{a},{o}\n" for a, p, s, o in rows))
        listed, until = network.get_nodes, clock.now + 600

        def get_nodes():
            if clock.now > until and mended == "file":
                tables[1].write_text(right)
            elif clock.now > until and "inputs" not in (file := tables[1].with_suffix(".toml")).read_text():
                file.write_text(file.read_text() + 'inputs = ["age", "pressure", "sex"]\n')
            return listed()

        network.get_nodes = get_nodes
        with caplog.at_level("WARNING", "fedmos"):
            result = self.deployed(network, study, tmp_path)
        reason = "the columns of client 'hospital-b' are not those of the server's test samples: their names, order or"
        assert sum(reason in line for line in caplog.messages if line.startswith("Refused node 101")) == 1
        waits = [line for line in caplog.messages if line.startswith("The start waits")]
        assert f": hospital-b (refused: {reason}" in waits[0]
        assert (result.params == expected).all()

    def deployed(self, network, study, tmp_path) -> fm.Result:
        from flwr.app import Context, RecordDict

        from fedmos.flower import server_app

        out = network.nodes[100]._config["state"] + "-run"
        test = write_table(tmp_path / "test.csv", 60, 9)
        server = tmp_path / "server.toml"
        server.write_text(f'host = "x"\n[test]\nfile = "{test}"\n')
        config = {"out": out, "test": str(server)}
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        server_app(study / "study/study/run.toml")(network, context)
        return fm.Result.load(out)

    def test_a_policy_of_the_client_s_own_file_is_kept(self, hospital, study, tmp_path):
        edit(hospital / "client.toml", "# [policy]", "[policy]\nmin_samples = 61")
        network = Network(lambda: client_app(study / "study/study/run.toml"), tmp_path / "state", HOSPITALS[:1])
        node = network.nodes[100]
        node._config["config"] = str(hospital / "client.toml")
        from flwr.app import Message

        header = {"run": "a" * 32, "round": 0, "client": 0, "lr": 0.5, "N": 3, "S": 3, "W": 1.0, "p": 0.5, "last": -1}
        header |= {"width": 60, "reports": "", "keep": False, "restart": "", "stored": ""}
        message = Message(wire.compose(header), 100, wire.TRAIN)
        message.metadata.__dict__["_message_id"] = "asked"
        assert node.answer(message).error.code == 114

    def test_simulations_of_it_are_refused(self, study):
        for command, said in (
            (["run"], "Cannot simulate data.name = 'clients' because each client has its own data"),
            (
                ["deploy", "local"],
                "Cannot run data.name = 'clients' with deploy local because its clients have no files",
            ),
        ):
            done = CliRunner().invoke(app, [*command, str(study / "study.toml")])
            assert done.exit_code != 0
            assert said in (done.output + str(done.exception))


OWN_CODE = """
from pathlib import Path
from fedmos.config.own_data import OwnDataConfig
AGREED = {"target": "outcome", "classes": ["no", "yes"], "categorical": {"sex": ["f", "m"]},
          "scale": {"age": [50.0, 15.0], "pressure": [130.0, 15.0]}}
def load(client):
    return OwnDataConfig(file=f"{client}.csv", **AGREED).load(Path(__file__).parent)
"""


@pytest.mark.parametrize(
    ("own", "match"),
    [
        ('file = "a.csv"\nclasses = ["yes"]', "'classes' must name all classes|classes: must name all classes"),
        ('file = "b.csv"', "No such file|does not exist|Cannot read"),
        ('folder = "x"\ntarget = "y"', "target: must be left out beside 'folder'"),
        ('file = "a.csv"\nscale = { weight = [0.0, 1.0] }', "scale: must name one of age, pressure"),
        ('function = "nothing.py:load"', "nothing.py"),
    ],
)
def test_data_that_cannot_be_read(study, hospital, own, match):
    """The client's own log has the reason."""
    shutil.copy(study / "a.csv", hospital)
    edit(hospital / "client.toml", f'file = "{study}/a.csv"', own)
    done = CliRunner().invoke(app, ["deploy", "try", str(hospital / "client.toml")])
    assert done.exit_code != 0
    import re

    assert re.search(match, f"{done.output} {done.exception}")


def test_a_trial_shows_shapes_classes_and_what_would_be_sent(hospital):
    edit(hospital / "client.toml", "# [policy]", '[policy]\ngradients = "always"\nclip_norm = 0.125')
    before = sorted(hospital.rglob("*"))
    lines = run("try", hospital / "client.toml").splitlines()
    assert lines[1:] == [
        "It trains FedAvg: 5 steps in batches of 16",
        "60 samples: x (4,) float32; targets () int64",
        lines[3],
        "Inputs: age, pressure, sex=f, sex=m",
        "Refuses 'query.losses', its losses at a model that the server sends",
        "Answers 'query.gradients', its gradient at a model that the server sends",
        "Refuses 'evaluate.loss', its training metrics",
        "Refuses 'evaluate.own', its metrics on its own test samples",
        lines[9],
        "One local step, 'train.work': would send 40 bytes, and the number of samples",
        "  delta: float32 (10,), norm 0.125",
        "Nothing was sent, and nothing was kept.",
    ]
    counts = [int(part.split(": ")[1]) for part in lines[3].removeprefix("Classes and their samples: ").split(", ")]
    assert sum(counts) == 60
    assert lines[9].startswith("The initial model: train_loss ")
    assert sorted(hospital.rglob("*")) == before


GUARDED = """
import dataclasses, os, runpy, sys
from pathlib import Path
from fedmos.flower.local.pinned_app import AppGuard, AppRefusedError

folder = Path(sys.argv[1])
apps = folder / "home" / "apps"
(apps / "mine").mkdir(parents=True)
(apps / "mine" / "mine_app.py").write_text("made = 1")
(folder / "other.py").write_text("print('RAN')")
AppGuard(folder / "home", apps / "mine", (), folder / "audit.jsonl").enforce()

def refused(what):
    try:
        what()
    except AppRefusedError as error:
        print(error)

def imported():
    sys.path.insert(0, str(folder))
    import other

def relative():
    os.chdir(folder)
    exec(compile("print('RAN')", "other.py", "exec"))

refused(lambda: os.makedirs(apps / "fedmos.evil.1.0.0.12345678"))
refused(lambda: runpy.run_path(str(folder / "other.py")))
refused(imported)
refused(relative)
sys.path.insert(0, str(apps / "mine"))
import json.tool, mine_app
assert mine_app.made == 1 and dataclasses.make_dataclass("A", ["x"])(1).x == eval("1")
print("END")
"""


class TestGuard:
    def test_the_installed_app_runs_and_anything_else_is_refused_and_audited(self, tmp_path):
        """In a process of its own: a hook cannot be removed."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", GUARDED, str(tmp_path)], capture_output=True, text=True, timeout=600
        )
        end = ": this client runs mine only"
        code = f"Refused the code of {tmp_path}/other.py{end}"
        refused = [f"Refused the app fedmos.evil.1.0.0.12345678 that the server has sent{end}", code, code, code]
        assert done.stdout.splitlines() == [*refused, "END"], done.stderr
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(line["asked"], line["outcome"], line["reason"]) for line in lines] == [
            ("app", "refused", reason) for reason in refused
        ]
        assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600

    def test_a_folder_of_python_that_holds_apps_is_no_way_around(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        guard = AppGuard(tmp_path / "home", tmp_path / "home/apps/mine")
        assert not any(str(tmp_path / "home/apps/evil/").startswith(root) for root in guard._roots())

    def test_other_programs_of_flower_are_refused(self):
        from fedmos.flower.local.pinned_app import run_guarded

        with pytest.raises(AppRefusedError, match="Refused to run flwr-agentapp: this client runs client apps only"):
            run_guarded("flwr-agentapp", "home", "installed", [], None)

    def test_a_client_without_an_app_of_its_own_does_not_start(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["x", "--secret", "s", "--supernode", "127.0.0.1:9"])
        with pytest.raises(SystemExit, match="2"):
            superexec.main()
        assert "--supernode needs either --app or --any-app" in capsys.readouterr().err


@contextmanager
def answering(study: Path, statuses: dict[str, int], ahead: float = 0.0):
    """A server with the study's certificate that answers paths by their beginning; its clock is behind by `ahead`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(next(code for path, code in statuses.items() if self.path.startswith(path)))
            self.end_headers()

        do_GET = do_POST

        def date_time_string(self, timestamp=None) -> str:
            return super().date_time_string((datetime.now(UTC) - timedelta(seconds=ahead)).timestamp())

        def log_message(self, *_: object) -> None: ...

    (port,) = free_ports(1)
    server = http.server.HTTPServer(("localhost", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(study / "server/server.pem", study / "server/server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(300)


PROXY = {"/v1/fleet/": 401, "/": 403}


class TestDoctor:
    def examine(self, file: Path, *options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["deploy", "doctor", str(file), *options])
        return done.exit_code, done.output

    def at(self, hospital: Path, port: int) -> Path:
        return edit(hospital / "client.toml", "localhost:1", f"localhost:{port}")

    def test_a_sound_client(self, study, hospital):
        with answering(study, PROXY) as port:
            code, said = self.examine(self.at(hospital, port))
        assert code == 0, said
        assert "FAULT" not in said
        assert "ok: The control API of the SuperLink is not reached" in said
        code, said = self.examine(hospital / "client.toml", "--offline")
        assert code == 0, said
        assert "The server answers" not in said

    @pytest.mark.parametrize(
        ("statuses", "ahead", "expected"),
        [
            ({"/v1/runtime/": 403, "/v1/control/": 200, "/": 401}, 0, "/v1/control/, is exposed at localhost:"),
            ({"/v1/control/": 403, "/": 401}, 0, "/v1/runtime/, is exposed at localhost:"),
            (PROXY, 20, "This machine's clock is 20 s ahead of the server's; the server refuses"),
            (PROXY, -400, "This machine's clock is 400 s behind the server's; the server refuses"),
            ({"/": 404}, 0, "but with status 404 to an unsigned request of a client"),
        ],
    )
    def test_faults_of_the_server_as_clients_see_it(self, study, hospital, statuses, ahead, expected):
        with answering(study, statuses, ahead) as port:
            code, said = self.examine(self.at(hospital, port))
        assert code == 1
        (line,) = (line for line in said.splitlines() if line.startswith("FAULT"))
        assert expected in line.replace("21 s", "20 s").replace("401 s", "400 s").replace("399 s", "400 s")

    def test_a_server_that_is_away(self, hospital):
        code, said = self.examine(hospital / "client.toml")
        assert code == 1
        assert "FAULT: The server cannot be reached at localhost:1: Connection refused." in said

    @pytest.mark.parametrize(
        ("harm", "expected"),
        [
            (
                lambda folder: (folder / "hospital-a").chmod(0o644),
                "has the mode 0644: others can read it; use chmod 600.",
            ),
            (lambda folder: (folder / "apps.secret").unlink(), "cannot be read: No such file or directory."),
            (lambda folder: (folder / "ca.pem").write_text("x"), "The authority's certificate"),
            (lambda folder: next(folder.glob("*.fab")).write_bytes(b"x"), "its content has changed."),
            (lambda folder: edit(folder / "client.toml", "a.csv", "none.csv"), "none.csv does not exist; change"),
            (lambda folder: (folder / "state").mkdir(mode=0o755), "Others can read the folder of the state"),
        ],
    )
    def test_faults_of_a_client(self, hospital, harm, expected):
        harm(hospital)
        code, said = self.examine(hospital / "client.toml", "--offline")
        assert code == 1
        (line,) = (line for line in said.splitlines() if line.startswith("FAULT"))
        assert expected in line

    def test_a_server(self, study, tmp_path):
        file = Path(shutil.copy(study / "study-operations/server.toml", tmp_path / "server.toml"))
        code, said = self.examine(file, "--offline")
        assert code == 1  # for another name than the certificate's
        assert "has the names localhost, 127.0.0.1, but clients reach the server as fl.example.org; use" in said
        edit(file, "fl.example.org", "localhost")
        code, said = self.examine(file, "--offline")
        assert code == 0, said
        assert f"note: {study}/server/ca.key is on this machine." in said
        with answering(study, PROXY) as port:
            edit(file, "port = 443", f"port = {port}")
            edit(file, "127.0.0.1:8000", f"localhost:{port}")
            code, said = self.examine(file)
        assert code == 0, said
        assert "ok: The reverse proxy answers" in said

    @pytest.mark.parametrize(
        ("days", "expected"), [(400, "has expired on"), (355, "days; use fedmos deploy keys renew")]
    )
    def test_certificates_that_end(self, hospital, monkeypatch, days, expected):
        class Later(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(days=days)

        monkeypatch.setattr(doctor_files, "datetime", Later)
        code, said = self.examine(hospital / "client.toml", "--offline")
        assert code == (1 if days > 365 else 0)
        assert expected in said

    def test_the_ports_that_this_machine_listens_on(self, tmp_path):
        head = "  sl  local_address rem_address   st\n"
        line = "   0: {address}:{port:04X} 00000000:0000 {state} 0\n"
        rows = [("0100007F", 9094, "0A"), ("00000000", 8000, "0A"), ("0A00000A", 9094, "01")]
        (tmp_path / "tcp").write_text(head + "".join(line.format(address=a, port=p, state=s) for a, p, s in rows))
        six = [("0" * 32, 8000, "0A"), ("0000000000000000FFFF00000100007F", 9095, "0A")]
        (tmp_path / "tcp6").write_text(head + "".join(line.format(address=a, port=p, state=s) for a, p, s in six))
        listening = doctor_network.listening
        assert listening(9094, tmp_path) == {"127.0.0.1"}
        assert listening(8000, tmp_path) == {"0.0.0.0", "::"}
        assert listening(9095, tmp_path) == {"127.0.0.1"}
        assert listening(1, tmp_path) == set()
        assert listening(1, tmp_path / "none") is None

    def test_a_port_that_is_open_to_others(self, hospital, monkeypatch):
        monkeypatch.setattr(doctor_network, "listening", lambda port: {"127.0.0.1", "0.0.0.0"})
        code, said = self.examine(hospital / "client.toml", "--offline")
        assert code == 1
        assert "FAULT: Port 9101 of the SuperNode is open at 0.0.0.0; it must be open on loopback only." in said


@pytest.mark.parametrize(("sender", "status"), [("itself", 1), ("another", 0)])
def test_a_process_that_is_refused_does_not_end_with_status_0(sender, status):
    """Flower interrupts itself when its requests are answered by 401, and then exits with status 0."""
    script = (
        "import os, signal, sys, time\nsys.path.insert(0, sys.argv[1])\n"
        "from exit_status import failure_if_refused\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\nwith failure_if_refused('REFUSED'):\n    print('ready', flush=True)\n"
        + ("    os.kill(os.getpid(), signal.SIGINT)\n" if sender == "itself" else "")
        + "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(Path(doctor.__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "ready\n"
        if sender == "another":
            os.kill(it.pid, signal.SIGINT)
        _, said = it.communicate(timeout=600)
    assert it.returncode == status
    assert ("REFUSED" in said) is (sender == "itself")
