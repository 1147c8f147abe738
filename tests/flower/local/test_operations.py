"""The files that `fedmos deploy init` writes for operators: nginx, systemd, docker compose."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedmos.cli.commands import app
from fedmos.flower.local.operations import CLIENT_UNITS, NGINX, SERVER_UNITS, Installation

UNITS = (*SERVER_UNITS, *CLIENT_UNITS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the command writes."""
    made = tmp_path_factory.mktemp("init") / "app"
    done = CliRunner().invoke(app, ["deploy", "init", str(made), "--host", "fl.hospital.test", "--port", "8443"])
    assert done.exit_code == 0, done.output
    return made.with_name("app-operations")


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of the section [Service]; a setting may be given several times."""
    text = path.read_text().replace("\\\n", " ").split("[Service]")[1].split("[Install]")[0]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def test_no_placeholder_is_left(folder):
    for path in folder.iterdir():
        assert not re.search(r"@[A-Z]+@", path.read_text()), path


@pytest.mark.parametrize("name", UNITS)
def test_units_run_as_an_unprivileged_user_who_can_write_only_its_state(folder, name):
    service = unit(folder / name)
    expected = {
        "User": "fedmos", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "StateDirectory": "fedmos",
        "StateDirectoryMode": "0700", "UMask": "0077", "Restart": "on-failure",
    }  # fmt: skip
    assert {name: service[name] for name in expected} == {name: [value] for name, value in expected.items()}
    configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True).read_string(
        (folder / name).read_text().replace("\\\n", " ")
    )


def test_the_superlink_listens_on_loopback_only(folder):
    (command,) = unit(folder / "fedmos-superlink.service")["ExecStart"]
    assert command == "/opt/fedmos/bin/fedmos deploy superlink /etc/fedmos/server.toml"
    services = yaml.safe_load((folder / "compose-server.yaml").read_text())["services"]
    assert services["superlink"]["command"] == ["fedmos", "deploy", "superlink", "/etc/fedmos/server.toml"]
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
    from fedmos.flower.local.installations import ServerInstallation

    started = " ".join(ServerInstallation.read(folder / "server.toml").superlink_command())
    assert "--host 127.0.0.1 --port 8000" in started
    assert "--enable-supernode-auth --isolation process --superexec-auth-secret-file /etc/fedmos/apps.secret" in started


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "10.0.0.3:8000", "fl.hospital.test:443"])
def test_a_superlink_that_others_reach_is_refused(folder, tmp_path, address):
    from fedmos.config.installation import read_server

    text = (folder / "server.toml").read_text().replace("127.0.0.1:8000", address)
    (tmp_path / "server.toml").write_text(text)
    with pytest.raises(ValueError, match="'superlink' must be an address of loopback, because whoever reaches it"):
        read_server(tmp_path / "server.toml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_the_units(folder, tmp_path, name):
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("fedmos", "flower-superlink"):
        shutil.copy("/bin/true", programs / program)
    text = (folder / name).read_text().replace("/opt/fedmos/bin", str(programs)).replace("/usr/sbin/nginx", "/bin/true")
    for other in UNITS:
        (tmp_path / other).write_text((folder / other).read_text().replace("/opt/fedmos/bin", str(programs)))
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, timeout=300
    )
    about = [line for line in done.stderr.splitlines() if name in line]
    assert not about


@pytest.mark.parametrize("side", ["server", "client"])
def test_compose_files_drop_privileges_and_publish_only_the_proxy(folder, side):
    services = yaml.safe_load((folder / f"compose-{side}.yaml").read_text())["services"]
    for name, service in services.items():
        if name != "nginx":
            assert service["cap_drop"] == ["ALL"]
            assert service["read_only"] is True
            assert service["security_opt"] == ["no-new-privileges:true"]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published == (["8443:8443"] if side == "server" else [])


@pytest.mark.parametrize("side", ["server", "client"])
def test_docker_reads_the_compose_files(folder, side, monkeypatch):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    monkeypatch.setenv("CLIENT", "hospital-a")
    command = [docker, "compose", "-f", str(folder / f"compose-{side}.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_proxy_forwards_one_location(folder):
    text = (folder / NGINX).read_text()
    assert re.findall(r"location (\S+)", text) == ["/v1/fleet/", "/"]
    assert text.count("proxy_pass ") == 1
    assert "listen 8443 ssl;" in text
    assert "server_name fl.hospital.test;" in text


def test_the_app_does_not_contain_them(folder):
    assert not list(folder.with_name("app").rglob("*.yaml"))


@pytest.mark.parametrize("host", ["", "a b", "x;y", "x}", "-a", "a\nb"])
def test_a_host_that_is_none_is_refused(host):
    with pytest.raises(ValueError, match="'host' must be a host name"):
        Installation(host)


def test_a_path_with_other_characters_is_refused():
    with pytest.raises(ValueError, match="'keys' must be an absolute path"):
        Installation(keys="/etc/a b")


def test_a_folder_in_use_is_left_alone(folder):
    with pytest.raises(FileExistsError, match="not empty"):
        Installation().write(folder)
