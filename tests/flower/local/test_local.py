"""Certificates, keys, processes and apps of a deployment, without Flower."""

import os
import signal
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmos.cli.commands import app
from fedmos.config import schema as config
from fedmos.flower.local.app_template import write_app
from fedmos.flower.local.environment import RETURNING_MEMORY, flower_environment
from fedmos.flower.local.process_group import ProcessGroup, wait_until
from fedmos.flower.local.progress import DeploymentProgress
from helpers import fresh
from helpers.processes import running

RUN = {
    "rounds": 2,
    "local_steps": 1,
    "data": {"name": "digits", "clients": 4, "partition": {"name": "IID"}},
    "model": {"name": "logistic", "features": 64},
    "algorithm": {"name": "FedMoS", "lr": 0.1},
    "selection": {"name": "ACS", "m": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A server's certificate, by an authority."""
    pytest.importorskip("cryptography")
    from fedmos.flower.local.certificates import make_certificates

    return make_certificates(tmp_path_factory.mktemp("ca"), ["127.0.0.1", "server.example"], days=2)


class TestCertificates:
    @pytest.mark.parametrize("host", ["127.0.0.1", "server.example"])
    def test_a_client_trusts_the_server_by_each_of_its_names(self, made, host):
        assert self.verifies(made.authority, made.server, host)

    def test_a_client_does_not_trust_another_name_or_another_authority(self, made, tmp_path):
        from fedmos.flower.local.certificates import make_certificates

        other = make_certificates(tmp_path, ["server.example"])
        assert not self.verifies(made.authority, made.server, "other.example")
        assert not self.verifies(other.authority, made.server, "server.example")

    def test_the_server_takes_its_certificate_and_key(self, made):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server, made.server_key)

    def test_the_certificate_ends_when_it_should(self, made):
        from cryptography import x509

        end = x509.load_pem_x509_certificate(made.server.read_bytes()).not_valid_after_utc
        assert abs(end - datetime.now(UTC) - timedelta(days=2)) < timedelta(minutes=1)

    def test_private_halves_are_private_and_never_replaced(self, made, tmp_path):
        from fedmos.flower.local.certificates import make_certificates, make_key

        pair = make_key(tmp_path / "a")
        for path in (made.authority_key, made.server_key, pair.private):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(FileExistsError, match="Cannot make"):
            make_key(tmp_path / "a")
        with pytest.raises(FileExistsError, match="Cannot make"):
            make_certificates(made.folder, ["localhost"])

    def test_a_key_pair_is_of_a_kind_that_flower_takes(self, tmp_path):
        pytest.importorskip("cryptography")
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

        from fedmos.flower.local.certificates import make_key

        pair = make_key(tmp_path / "a")
        private, public = (
            load_ssh_private_key(pair.private.read_bytes(), None),
            load_ssh_public_key(pair.public.read_bytes()),
        )
        assert private.public_key() == public
        assert public.curve.name == "secp384r1"

    @staticmethod
    def verifies(authority: Path, server: Path, host: str) -> bool:
        import ipaddress

        from cryptography import x509
        from cryptography.x509 import verification

        load = x509.load_pem_x509_certificate
        subject = x509.DNSName(host)
        if host[0].isdigit():
            subject = x509.IPAddress(ipaddress.ip_address(host))
        store = verification.Store([load(authority.read_bytes())])
        try:
            verification.PolicyBuilder().store(store).build_server_verifier(subject).verify(
                load(server.read_bytes()), []
            )
        except verification.VerificationError:
            return False
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what runs")
class TestProcessGroup:
    def test_all_end_with_it_even_those_that_do_not_heed_and_what_they_started(self, tmp_path):
        stubborn = "trap '' TERM; sleep 600 & echo $! > grandchild; wait; sleep 600"
        with ProcessGroup(tmp_path, os.environ) as processes:
            processes.start("meek", ["sleep", "600"])
            processes.start("stubborn", ["sh", "-c", f"cd {tmp_path}; {stubborn}"])
            wait_until((tmp_path / "grandchild").exists, 60, "grandchild")
            wait_until(lambda: bool((tmp_path / "grandchild").read_text()), 60, "grandchild")
            pids = [processes.pid("meek"), processes.pid("stubborn"), int((tmp_path / "grandchild").read_text())]
            assert all(map(running, pids))
            processes.stop(timeout=0.2)
            wait_until(lambda: not any(map(running, pids)), 60, "end")  # a killed one takes a moment to go
            assert not processes.alive("meek")

    def test_what_an_ended_process_left_behind_ends_too(self, tmp_path):
        with ProcessGroup(tmp_path, os.environ) as processes:
            processes.start("gone", ["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child"])
            wait_until(lambda: not processes.alive("gone"), 60, "its end")
            child = int((tmp_path / "child").read_text())
            assert running(child)
        wait_until(lambda: not running(child), 60, "the end of its child")

    def test_a_process_can_be_killed_and_started_again(self, tmp_path):
        with ProcessGroup(tmp_path, os.environ) as processes:
            processes.start("one", ["sh", "-c", "echo said; sleep 600"])
            wait_until(lambda: processes.log_tail("one") == "said", 60, "its word")
            first = processes.pid("one")
            processes.kill("one")
            assert not running(first)
            assert not processes.alive("one")
            processes.start("one", ["sleep", "600"])
            assert processes.alive("one")

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_all_end_when_their_starter_is_ended(self, tmp_path, number):
        script = tmp_path / "starter.py"
        script.write_text(
            "import os, signal, sys, time\n"
            "from pathlib import Path\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from process_group import ProcessGroup, exit_on_signals\n"
            "with exit_on_signals(), ProcessGroup(Path(sys.argv[2]), os.environ) as processes:\n"
            "    for name in 'ab':\n"
            "        processes.start(name, ['sleep', '600'])\n"
            "    print(os.getpid(), processes.pid('a'), processes.pid('b'), flush=True)\n"
            "    time.sleep(600)\n"
        )
        module = Path(sys.modules[ProcessGroup.__module__].__file__).parent
        with subprocess.Popen(
            [sys.executable, str(script), str(module), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as starter:
            starter_pid, *pids = map(int, starter.stdout.readline().split())
            time.sleep(0.2)  # until they have been tied
            assert all(map(running, pids))
            os.kill(starter_pid, number)
            starter.wait(60)
        wait_until(lambda: not any(map(running, pids)), 60, "the end of all")


class TestApp:
    def test_it_holds_the_configuration_and_names_its_parts(self, tmp_path):
        settings = config.parse(config.RunConfig, RUN)
        write_app(tmp_path / "My-App", settings.kept(), out="/srv/run")
        project = tomllib.loads((tmp_path / "My-App" / "pyproject.toml").read_text())
        components = project["tool"]["flwr"]["app"]["components"]
        assert components == {"serverapp": "my_app.server_app:app", "clientapp": "my_app.client_app:app"}
        assert project["tool"]["flwr"]["app"]["config"] == {"out": "/srv/run", "test": ""}
        assert config.load(config.RunConfig, tmp_path / "My-App" / "my_app" / "run.toml") == settings
        for side in ("server", "client"):
            compile((tmp_path / "My-App" / "my_app" / f"{side}_app.py").read_text(), side, "exec")

    @pytest.mark.parametrize("name", ["1st", "under_score", "a" * 33, "sp ace"])
    def test_names_that_flower_does_not_take_are_refused(self, tmp_path, name):
        with pytest.raises(ValueError, match="the name of 'DIR' must be a letter"):
            write_app(tmp_path / name, RUN)

    def test_a_folder_in_use_is_left_alone(self, tmp_path):
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "mine").touch()
        with pytest.raises(FileExistsError, match="not empty"):
            write_app(tmp_path / "app", RUN)

    def test_the_command_writes_it_with_overrides(self, tmp_path):
        done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "app"), "--set", "algorithm.lr=0.25"])
        assert done.exit_code == 0, done.output
        assert config.load(config.RunConfig, tmp_path / "app" / "app" / "run.toml").algorithm.fields["lr"] == 0.25


def test_only_the_apps_need_flower():
    program = """
import sys

sys.modules["flwr"] = None  # as if it were not installed
import fedmos.flower.local.app_template, fedmos.flower.local.certificates, fedmos.flower.local.process_group
from fedmos.config.tables import DeployConfig
from fedmos.flower import Deploy

assert DeployConfig().make() == Deploy()
try:
    from fedmos.flower import server_app
except ModuleNotFoundError as error:
    print(error)
"""
    done = fresh.run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Cannot deploy because flwr is not installed; use pip install 'fedmos[flower]'\n"


@pytest.mark.parametrize("command", ["node", "apps"])
def test_the_commands_for_single_machines_start_their_programs(monkeypatch, command):
    started = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, environment: started.append(arguments))
    done = CliRunner().invoke(app, ["deploy", command, "--superlink", "host:1"])
    assert done.exit_code == 0, done.output
    ((python, *options, program, name, value),) = started
    assert (python, name, value) == (sys.executable, "--superlink", "host:1")
    if command == "node":
        assert options == ["-P"]
        assert Path(program).is_file()
    else:
        assert options == ["-P", "-m"]
        assert find_spec(program) is not None


def test_the_environment_is_offline_and_spares_the_proxy(tmp_path):
    made = flower_environment(
        tmp_path, 0.001, {"PATH": "/usr/bin", "no_proxy": "example.org", "HTTPS_PROXY": "http://proxy"}
    )
    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_DISABLE_UPDATE_CHECK"] == made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert made["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.01"
    assert made["no_proxy"] == "example.org,127.0.0.1,localhost"
    assert made["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_progress_tells_each_round_once_and_only_when_its_line_is_complete(tmp_path):
    progress, metrics = DeploymentProgress(tmp_path), tmp_path / "metrics.jsonl"
    assert progress.new_records() == []
    metrics.write_text('{"round": 1}\n{"round": 2')
    assert [r["round"] for r in progress.new_records()] == [1]
    assert progress.new_records() == []
    metrics.write_text('{"round": 1}\n{"round": 2}\n')
    assert [r["round"] for r in progress.new_records()] == [2]
    metrics.write_text('{"round": 1}\n')  # a server that continues after round 1
    assert progress.new_records() == []
    metrics.write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n')
    assert [r["round"] for r in progress.new_records()] == [3]


class TestForkingExecutor:
    """The executor of client and server apps, with apps that only sleep."""

    @pytest.fixture
    def module(self, monkeypatch):
        pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
        from fedmos.flower.local import forking_executor

        monkeypatch.setattr(forking_executor, "_GRACE_PERIOD", 0.2)
        monkeypatch.setattr(forking_executor, "_APPS", dict.fromkeys(forking_executor._APPS, lambda: time.sleep(600)))
        return forking_executor

    @pytest.fixture
    def executor(self, module):
        executor = module.ForkingExecutor()
        yield executor
        for process in (*executor._clients, *executor._servers):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    @staticmethod
    def task(kind: str):
        from flwr.supercore.constant import TaskType
        from flwr.supercore.superexec.executor import ExecutionSpec

        return ExecutionSpec(
            task_type=TaskType(kind),
            runtime_api_address="127.0.0.1:1",
            token="token",
            insecure=True,
            root_certificates_path=None,
            runtime_dependency_install=False,
            parent_pid=None,
            suppress_output=False,
            task_id=1,
        )

    def test_a_client_app_that_hangs_ends_after_its_successor_came(self, executor):
        executor.launch(self.task("flwr-clientapp"))
        (first,) = executor._clients
        for _ in range(5):
            time.sleep(0.1)
            executor.reconcile()
        assert running(first)  # as long as it has no successor, it may take its time
        executor.launch(self.task("flwr-clientapp"))

        def gone() -> bool:
            executor.reconcile()
            return first not in executor._clients

        wait_until(gone, 60, "the end of the first")
        assert not running(first)
        assert len(executor._clients) == 1

    def test_the_death_of_a_server_app_is_reported(self, module, executor, monkeypatch):
        reported = []
        monkeypatch.setattr(module, "_report_failure", lambda spec, reason: reported.append((spec.task_id, reason)))
        executor.launch(self.task("flwr-serverapp"))
        (process,) = executor._servers
        os.kill(process, signal.SIGKILL)

        def told() -> bool:
            executor.reconcile()
            return bool(reported)

        wait_until(told, 60, "the report")
        assert reported == [(1, "The server app was ended by SIGKILL.")]


def test_what_does_not_compute_returns_freed_memory(tmp_path):
    pytest.importorskip("cryptography")
    from fedmos.flower.local.local_deployment import LocalDeployment

    made = LocalDeployment(tmp_path, ["a"])
    assert made.command("superlink")[1] == made.command("node-0")[1] == RETURNING_MEMORY
    assert not RETURNING_MEMORY.keys() & made.command("apps")[1].keys()
