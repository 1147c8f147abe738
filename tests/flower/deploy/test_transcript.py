"""The transcript of docs/deploy/start.md: a server and three hospitals as folders; then strangers try their luck."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fedmos as fm

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

from fedmos.flower.local.local_deployment import free_ports
from helpers.flower_pages import ROOT, is_quoted

pytestmark = pytest.mark.deploy
PORTS = ("8443", "8000", "9101", "9102", "9103")
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
NGINX = "/usr/sbin/nginx"


def transcript() -> str:
    """The first block of commands of the page."""
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs/deploy/start.md").read_text("utf-8"), re.S)[0]


def commands() -> list[str]:
    return [line for line in transcript().splitlines() if line and not line.startswith("#")]


def test_it_has_under_20_commands():
    assert 15 < len(commands()) < 20


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """The folder of the transcript and its output, while its processes run; each port is a free one."""
    if not Path(NGINX).exists():
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder, text = tmp_path_factory.mktemp("transcript"), transcript()
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = text.replace(port, str(free))
    shutil.copytree(ROOT / "examples" / "deployment", folder / "examples" / "deployment")
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    }
    script = text + "\necho THE END $?\nsleep 100000\n"
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said: list[str] = []
    try:
        assert shell.stdout is not None
        for line in shell.stdout:
            said.append(line)
            if line.startswith("THE END"):
                break
        yield folder / "trial", "".join(said), environment
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(120)
        assert shell.stdout is not None
        shell.stdout.close()


def logs(folder: Path) -> str:
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted(folder.glob("*.log")))


def test_a_newcomer_gets_a_trained_model(trial):
    folder, said, _ = trial
    assert "THE END 0" in said, said + logs(folder)
    assert "checks passed." in said
    assert "FAULT" not in said
    assert "delta: float32 (10,), norm 0.28" in said
    result = fm.Result.load(folder / "run")
    assert len(result.history) == 4
    assert result.history[-1].cohort == [0, 1, 2]
    assert result.history[-1].accuracy > 0.6


def test_the_page_quotes_what_the_trial_prints(trial):
    _, said, _ = trial
    page = (ROOT / "docs/deploy/start.md").read_text("utf-8")
    (quoted,) = re.findall(r"```text\n(It trains.*?)```", page, re.S)
    assert quoted in said


def test_files_of_every_machine_are_private(trial):
    folder, *_ = trial
    public = {"ca.pem", "server.pem", *(f"{name}.pub" for name in HOSPITALS)}
    machines = [folder / "server", folder / "run", *(folder / name for name in HOSPITALS)]
    files = [path for machine in machines for path in machine.rglob("*") if path.is_file() and path.name not in public]
    assert len(files) > 40
    nginxs_own = {"nginx.pid", "refused.log"}
    loose = [str(path) for path in files if path.stat().st_mode & 0o077 and path.name not in nginxs_own]
    assert loose == []
    assert stat.S_IMODE((folder / "server" / "state").stat().st_mode) == 0o700


def test_an_app_that_the_server_sends_is_refused(trial):
    """The operator's account is taken over, or the operator starts another app: no client runs its code."""
    folder, _, environment = trial
    shutil.copytree(folder / "study", folder / "study2")
    (folder / "study2" / "pyproject.toml").write_text((folder / "study" / "pyproject.toml").read_text())
    with (folder / "study2" / "study" / "client_app.py").open("a") as file:
        file.write(f"Path({str(folder)!r}, 'pwned').touch()\n")
    start = ["fedmos", "deploy", "start", "study-operations/server.toml", "study2", "--out", "run2"]
    subprocess.run(start, cwd=folder, env=environment, check=True, timeout=600)
    audits = [folder / name / "state" / name / "audit.jsonl" for name in HOSPITALS]

    def refused() -> bool:
        return all('"asked": "app"' in audit.read_text() for audit in audits)

    from fedmos.flower.local.process_group import wait_until

    wait_until(refused, 600, "the refusals", every=1)
    assert not (folder / "pwned").exists()
    for name, audit in zip(HOSPITALS, audits, strict=True):
        (line,) = [e for e in map(json.loads, audit.read_text().splitlines()) if e["asked"] == "app"][:1]
        assert is_quoted(line["reason"])
        assert "AppRefusedError: " + line["reason"] in (folder / f"apps-{name[-1]}.log").read_text()


def test_a_stranger_reaches_no_control(trial):
    """Someone with the authority's certificate tries to start an app through the reverse proxy."""
    folder, _, _ = trial
    from fedmos.flower.local.control import ControlClient

    address = re.search(r'server = "(.*)"', (folder / "hospital-a" / "client.toml").read_text())
    assert address is not None
    stranger = ControlClient(address[1], folder / "server" / "ca.pem", folder / "stranger")
    with pytest.raises(RuntimeError, match="because it fails"):
        stranger.start(folder / "study", {})
    lines = (folder / "server" / "state" / "refused.log").read_text().splitlines()
    assert lines
    assert any(is_quoted(line) for line in lines), lines


@pytest.mark.parametrize("fault", ["secret", "clock"])
def test_a_process_that_is_refused_fails(trial, tmp_path, fault):
    """A wrong secret of apps, or a clock 20 s ahead: status 1 and a sentence."""
    folder, _, environment = trial
    (tmp_path / "wrong").write_bytes(os.urandom(32))
    (port,) = free_ports(1)
    if fault == "secret":
        address = f"127.0.0.1:{re.search(r'port = (.*)', (folder / 'hospital-a/client.toml').read_text())[1]}"
        command = ["fedmos", "deploy", "apps", "--secret", str(tmp_path / "wrong"), "--supernode", address, "--any-app"]
    else:
        from fedmos.flower.local import supernode
        from fedmos.flower.local.installations import ClientInstallation

        text = (folder / "hospital-a/client.toml").read_text()
        own = folder / "hospital-a/ahead.toml"
        own.write_text(re.sub(r"port = .*", f"port = {port}", text))
        ahead = (
            "import datetime, runpy, sys\nimport flwr.supernode.node_auth_http_interceptor as m\nnow = m.now\n"
            "m.now = lambda: now() + datetime.timedelta(seconds=20)\n"
            f"sys.argv = ['supernode.py', *sys.argv[1:]]\nrunpy.run_path({supernode.__file__!r}, run_name='__main__')\n"
        )
        command = [sys.executable, "-c", ahead, *ClientInstallation.read(own).node_arguments()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert is_quoted(next(line for line in done.stderr.splitlines() if "refuses this" in line))
