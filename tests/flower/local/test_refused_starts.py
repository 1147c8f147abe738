"""Mistakes of operators: each is one sentence that names the file, before a program of Flower starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
from typer.testing import CliRunner

from fedmos.cli.commands import app
from fedmos.config import schema as config
from fedmos.config.own_data import OwnDataConfig
from fedmos.flower.client_errors import ClientError, ClientErrorCode
from fedmos.flower.client_setup import read_samples
from fedmos.flower.local.app_template import keep_app
from fedmos.flower.local.certificates import client_key, make_certificates, make_secret
from fedmos.flower.local.control import ControlClient
from fedmos.flower.local.local_deployment import free_ports
from fedmos.flower.local.prepare_client import prepare_client
from fedmos.flower.monitoring.status import DeploymentStatus
from fedmos.flower.node_identities import fingerprint, read_key
from fedmos.storage.lock import FolderLock
from helpers.study import HOSPITALS, write_study, write_table


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The server's keys and file, the app, and the installation of hospital-a; not to be changed."""
    folder = tmp_path_factory.mktemp("study")
    certificates = make_certificates(folder / "server", ["localhost"])
    make_secret(certificates.folder)
    done = CliRunner().invoke(app, ["deploy", "init", str(folder / "study"), str(write_study(folder))])
    assert done.exit_code == 0, done.output
    client, superlink = free_ports(2)
    (folder / "server" / "server.toml").write_text(
        f'host = "localhost"\nsuperlink = "127.0.0.1:{superlink}"\nkeys = "."\nstate = "state"\n'
    )
    table = {"file": str(write_table(folder / "a.csv", 60, 1))}
    prepare_client(
        folder / "client", HOSPITALS[0], "localhost:1", certificates.authority, folder / "study", "state", client, table
    )
    return folder


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """The programs that were started, in place of starting them."""
    programs: list[list[str]] = []
    for name in ("execve", "execvpe"):
        monkeypatch.setattr(os, name, lambda program, arguments, environment: programs.append(arguments))
    return programs


def start(process: str, machine: Path) -> str:
    """Start a process of a machine; returns why it does not start."""
    before = os.umask(0o077)  # the commands change it
    try:
        (file,) = (path for name in ("server.toml", "client.toml") if (path := machine / name).exists())
        done = CliRunner().invoke(app, ["deploy", process, str(file)])
    finally:
        os.umask(before)
    assert done.exception is None or isinstance(done.exception, ValueError | OSError), done.exception
    return str(done.exception or "")


@pytest.mark.parametrize(
    ("process", "machine"), [("superlink", "server"), ("apps", "server"), ("node", "client"), ("apps", "client")]
)
def test_a_sound_installation_starts(study, tmp_path, started, process, machine):
    assert start(process, Path(shutil.copytree(study / machine, tmp_path / machine))) == ""
    assert len(started) == 1


@pytest.mark.parametrize(
    ("process", "machine", "file", "content", "expected"),
    [
        ("superlink", "server", "server.key", None, "server.key cannot be read: No such file or directory."),
        ("superlink", "server", "ca.pem", "x", "ca.pem, is not a certificate in PEM format."),
        ("superlink", "server", "server.key", "x", "does not belong to"),
        ("apps", "server", "apps.secret", "", "has 0 bytes; remove it and use fedmos deploy keys add."),
        ("node", "client", HOSPITALS[0], None, "hospital-a cannot be read: No such file or directory."),
        ("node", "client", HOSPITALS[0], "x", "is not a private key of fedmos deploy client or keys add."),
        ("node", "client", "ca.pem", None, "ca.pem, cannot be read: No such file or directory."),
        ("apps", "client", "apps.secret", None, "apps.secret cannot be read: No such file or directory."),
        ("apps", "client", "*.fab", None, "does not exist; use fedmos deploy client, or change 'app'."),
        ("apps", "client", "*.fab", "x", "its content has changed."),
    ],
)
def test_a_faulty_installation_does_not_start(study, tmp_path, started, process, machine, file, content, expected):
    folder = Path(shutil.copytree(study / machine, tmp_path / machine))
    (path,) = folder.glob(file)
    path.unlink()
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    said = start(process, folder)
    assert said.startswith(f"deploy {process}: ")
    assert expected in said
    assert "fedmos deploy doctor" in said
    assert "\n" not in said
    assert started == []


@pytest.mark.parametrize(
    ("process", "machine"), [("superlink", "server"), ("apps", "server"), ("node", "client"), ("apps", "client")]
)
def test_a_missing_folder_of_the_state(study, tmp_path, started, process, machine):
    """It is made, for its owner alone. One that cannot be made, as /var/lib/fedmos by a user, is named in a sentence."""
    folder = Path(shutil.copytree(study / machine, tmp_path / machine))
    file = next(folder.glob("*.toml"))
    lines = file.read_text().splitlines()

    def start_with(state: str) -> str:
        file.write_text("\n".join(f'state = "{state}"' if line.startswith("state") else line for line in lines))
        return start(process, folder)

    assert start_with("missing/state") == ""
    assert (folder / "missing" / "state").stat().st_mode & 0o777 == 0o700
    (folder / "occupied").touch()
    said = start_with("occupied/state")
    assert said.startswith(f"Cannot make the folder {folder / 'occupied/state'} because of an error: Not a directory")
    assert said.endswith("; make it as the user of this process")
    assert "\n" not in said
    assert len(started) == 1


@pytest.mark.parametrize(
    ("process", "machine", "field"), [("superlink", "server", "superlink"), ("node", "client", "port")]
)
def test_a_port_in_use(study, tmp_path, started, process, machine, field):
    folder = Path(shutil.copytree(study / machine, tmp_path / machine))
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        file = next(folder.glob("*.toml"))
        value = f'"127.0.0.1:{port}"' if field == "superlink" else str(port)
        lines = [f"{field} = {value}" if line.startswith(field) else line for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines))
        assert f"Cannot listen on port {port}: Address already in use; end the process" in start(process, folder)
    assert started == []


@pytest.mark.parametrize(
    ("process", "machine", "expected"),
    [
        ("node", "server", "is the file of a server; use a client's"),
        ("superlink", "client", "is the file of a client; use"),
    ],
)
def test_the_file_of_another_machine(study, started, process, machine, expected):
    assert expected in start(process, study / machine)
    assert started == []


@pytest.mark.parametrize("port", [0, 65536])
def test_ports_that_do_not_exist(study, tmp_path, started, port):
    folder = Path(shutil.copytree(study / "client", tmp_path / "client"))
    text = (folder / "client.toml").read_text()
    (folder / "client.toml").write_text(text.replace("localhost:1", f"localhost:{port}"))
    assert "server: must be HOST:PORT" in start("node", folder)
    lines = [f"port = {port}" if line.startswith("port") else line for line in text.splitlines()]
    (folder / "client.toml").write_text("\n".join(lines))
    assert "port: must be a port, an integer in [1, 65535]" in start("node", folder)


def test_the_doctor_names_the_fingerprint_of_a_client(study):
    done = CliRunner().invoke(app, ["deploy", "doctor", "--offline", str(study / "client" / "client.toml")])
    assert done.exit_code == 0, done.output
    found = fingerprint((study / "client" / "hospital-a.pub").read_bytes())
    assert f"ok: The key of hospital-a has the fingerprint {found}." in done.output


def test_public_keys_are_checked_before_they_are_registered(study, tmp_path):
    assert read_key(study / "client" / "hospital-a.pub").startswith(b"ecdsa")
    with pytest.raises(ValueError, match=r"is not a public key; use a client's file NAME\.pub"):
        read_key(study / "client" / "hospital-a")
    with pytest.raises(OSError, match=r"Cannot read the public key .*none\.pub because of an error: No such file"):
        read_key(tmp_path / "none.pub")


@pytest.mark.parametrize("host", ["a b", "https://fl.example.org", "fl.example.org:443", "", "ü.example.org"])
def test_hosts_that_no_client_can_reach(tmp_path, host):
    with pytest.raises(ValueError, match="deploy keys: '--host' must be a host name or an address"):
        make_certificates(tmp_path / "keys", ["localhost", host])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("arguments", [[], ["server"]])
@pytest.mark.parametrize("command", ["node", "apps"])
def test_no_file_of_an_installation(started, command, arguments):
    done = CliRunner().invoke(app, ["deploy", command, *arguments])
    assert str(done.exception).startswith(f"deploy {command}: the first argument must be ")
    assert started == []


@pytest.mark.parametrize("command", ["node", "apps"])
def test_the_help_of_forwarding_commands_names_the_file(started, command):
    done = CliRunner().invoke(app, ["deploy", command, "--help"])
    assert "CLIENT.toml" in done.output
    assert started[0][-1] == "--help"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "Cannot read the data .*a.csv because of an error: No such file"),
        (b"sex,age\nm\xe4nnlich,3\n", "not UTF-8 text"),
    ],
)
def test_data_that_cannot_be_read(study, tmp_path, content, expected):
    file = tmp_path / "a.csv"
    if content is not None:
        file.write_bytes(content)
    table = OwnDataConfig(file=str(file), target="age")
    with pytest.raises(ClientError, match=expected) as raised:
        read_samples(table, tmp_path)
    assert raised.value.code == ClientErrorCode.DATA


class TestPrepareClient:
    def prepare(self, study: Path, folder: Path, **given: Path) -> None:
        paths = {"authority": study / "server" / "ca.pem", "app": study / "study"} | given
        prepare_client(folder, HOSPITALS[0], "localhost:1", paths["authority"], paths["app"], "state", 9094, {})

    def test_a_key_that_was_made_before_is_kept(self, study, tmp_path):
        """The operator can collect public keys, name them in the app, and send it after that."""
        pair = client_key(tmp_path, HOSPITALS[0])
        before = pair.private.read_bytes()
        self.prepare(study, tmp_path)
        assert pair.private.read_bytes() == before

    @pytest.mark.parametrize("option", ["authority", "app"])
    def test_paths_that_do_not_exist(self, study, tmp_path, option):
        with pytest.raises(
            FileNotFoundError, match=rf"deploy client: '--{option}' must be an existing path, got '.*x'"
        ):
            self.prepare(study, tmp_path / "client", **{option: tmp_path / "x"})
        assert not (tmp_path / "client").exists()

    def test_what_is_no_app(self, study, tmp_path):
        with pytest.raises(ValueError, match=r"'--app' must be the folder of an app, with pyproject\.toml, or a file"):
            self.prepare(study, tmp_path / "client", app=study / "study.toml")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["init", "app", "--superlink", "0.0.0.0:8000"], "'superlink' must be 127.0.0.1:PORT or localhost:PORT"),
        (["init", "app", "--test", "none.csv"], "'--test' must be an existing file or folder, got 'none.csv'"),
        (
            ["client", "c", "--name", "a", "--server", "x:1", "--authority", "x", "--app", "x", "--data", "none.csv"],
            "'--data' must be an existing file or folder, got 'none.csv'",
        ),
        (["keys", "show", "none"], "'DIR' must be an existing folder, got 'none'"),
    ],
)
def test_arguments_that_would_fail_later(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["deploy", *arguments])
    assert expected in str(done.exception)
    assert list(tmp_path.iterdir()) == []


class TestStart:
    def start(self, study: Path, *arguments: object) -> str:
        done = CliRunner().invoke(app, ["deploy", "start", str(study / "server/server.toml"), *map(str, arguments)])
        assert done.exit_code != 0
        return str(done.exception)

    def test_an_app_that_does_not_exist(self, study, tmp_path):
        said = self.start(study, tmp_path / "none", "--out", tmp_path / "run")
        assert said.startswith("deploy start: 'APP' must be the folder of an app, with pyproject.toml, got ")

    def test_a_run_folder_in_use(self, study, tmp_path):
        lock = FolderLock(tmp_path / "lock")
        try:
            said = self.start(study, study / "study", "--out", tmp_path)
        finally:
            lock.release()
        assert said.startswith(f"Cannot start a run in {tmp_path} because another run writes it")

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            (
                "finished",
                "The run in {out} is finished, after 3 of 3 rounds. Run 7 ends at once, unless the configuration",
            ),
            ("failed", "Run 7 has started; its folder is {out}."),
            (None, "Run 7 has started; its folder is {out}."),
        ],
    )
    def test_a_finished_run_is_named(self, study, tmp_path, monkeypatch, state, expected):
        if state is not None:
            DeploymentStatus("run", state, rounds=3, completed=3).write(tmp_path)
        monkeypatch.setattr(ControlClient, "wait", lambda self: None)
        monkeypatch.setattr(ControlClient, "start", lambda self, app, given: 7)
        given = [study / "server/server.toml", study / "study", "--out", tmp_path]
        done = CliRunner().invoke(app, ["deploy", "start", *map(str, given)])
        assert done.exit_code == 0, done.output
        assert " ".join(done.output.split()).startswith(expected.format(out=tmp_path))


def test_apps_that_run_already(tmp_path):
    """A second process would remove the app that the first one runs. The lock ends with the process that has it."""
    from fedmos.flower.local import superexec

    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fedmos.flower.local.superexec import hold\n"
        f"hold(Path({str(tmp_path)!r}))\nprint('held', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(
                SystemExit, match=r"Cannot use .* because another process runs apps there; end it first"
            ):
                superexec.hold(tmp_path)
        finally:
            holder.kill()
    superexec.hold(tmp_path)


class TestKeepApp:
    """`fedmos deploy local` with the folder of an interrupted run."""

    RUN = {"algorithm": {"name": "FedAvg", "lr": 0.1}, "selection": {"name": "Full"}, "rounds": 2}

    def test_the_same_configuration_continues(self, tmp_path):
        first = keep_app(tmp_path / "app", self.RUN)
        assert first.exists()
        assert keep_app(tmp_path / "app", self.RUN) == first

    def test_another_configuration_is_refused(self, tmp_path):
        keep_app(tmp_path / "app", self.RUN)
        with pytest.raises(
            ValueError, match=r"run\.toml, has another 'algorithm', 'rounds'; use the same configuration"
        ):
            keep_app(tmp_path / "app", self.RUN | {"algorithm": {"name": "FedAvg", "lr": 0.2}, "rounds": 3})

    def test_other_own_code_is_refused(self, tmp_path):
        own = tmp_path / "mine.py"
        own.write_text("import fedmos as fm\n\n\nclass Mine(fm.FedAvg):\n    pass\n")
        settings = self.RUN | {"algorithm": {"name": f"{own}:Mine", "lr": 0.1}}
        keep_app(tmp_path / "app", settings)
        keep_app(tmp_path / "app", settings)
        own.write_text(own.read_text() + "\n")
        with pytest.raises(ValueError, match=r"mine\.py differs from the code of this configuration"):
            keep_app(tmp_path / "app", settings)

    def test_the_command_refuses_it_before_it_starts_a_process(self, tmp_path):
        settings = config.load(config.RunConfig, Path(config.__file__).parent / "builtin/deploy.toml")
        keep_app(tmp_path / "app", settings.kept(exclude={"out"}))
        done = CliRunner().invoke(app, ["deploy", "local", "--out", str(tmp_path), "--set", "rounds=3"])
        assert "has another 'rounds'" in str(done.exception)
        assert not (tmp_path / "logs").exists()
