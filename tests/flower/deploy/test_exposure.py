"""A SuperLink behind the reverse proxy of `fedmos deploy init`: clients join, strangers reach nothing else."""

import http.client
import shutil
import socket
import ssl
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

from fedmos.flower.local.app_template import write_app
from fedmos.flower.local.certificates import make_key
from fedmos.flower.local.control import ControlClient
from fedmos.flower.local.environment import flower_environment
from fedmos.flower.local.local_deployment import _SUPERNODE_PROGRAM, free_ports
from fedmos.flower.local.operations import NGINX, Installation
from fedmos.flower.local.process_group import wait_until
from helpers.deploy_methods import configuration

pytestmark = pytest.mark.deploy
HIDDEN = [
    *("/v1/control/start-run", "/v1/control/", "/v1/runtime/acquire-task", "/v1/runtime/", "/docs", "/health", "/"),
    *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol/start-run"),
    *("//v1/control/start-run", "/v1/fleet/../runtime/x", "/V1/control/start-run"),
]


@pytest.fixture(scope="module")
def proxy(deployment, tmp_path_factory):
    """The port of a reverse proxy in front of the SuperLink."""
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("proxy")  # readable by its owner only, as the state of an installation
    (port,) = free_ports(1)
    keys = str(deployment.certificates.folder)
    Installation("localhost", port, deployment.address, keys=keys).write(folder / "operations")
    command = [nginx, "-p", str(folder), "-c", str(folder / "operations" / NGINX), "-g", "daemon off;"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: answers(port), 120, f"nginx does not listen: {(folder / 'log').read_text()}")
            yield port
        finally:
            process.terminate()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=1).close()
    except OSError:
        return False
    return True


def status(deployment, port: int, method: str, path: str, body: bytes = b"") -> int:
    """The status of a request by someone who has the authority's certificate; the path is sent as it is."""
    context = ssl.create_default_context(cafile=str(deployment.certificates.authority))
    connection = http.client.HTTPSConnection("localhost", port, timeout=120, context=context)
    try:
        connection.request(method, path, body, headers={"content-type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_client_joins_through_the_proxy(deployment, proxy, tmp_path):
    before, key = deployment.control.online(), make_key(tmp_path / "key")
    node = deployment.control.register(key.public)
    (port,) = free_ports(1)
    command = [sys.executable, "-P", str(_SUPERNODE_PROGRAM), "--superlink", f"localhost:{proxy}"]
    command += ["--root-certificates", str(deployment.certificates.authority), "--port", str(port)]
    command += ["--auth-supernode-private-key", str(key.private), "--isolation", "process"]
    command += ["--superexec-auth-secret-file", str(deployment._secret)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=flower_environment(tmp_path, 0.1), stdout=log, stderr=log)
    try:
        wait_until(lambda: node in deployment.control.online(), 300, "The client does not join", every=1)
    finally:
        process.terminate()
        process.wait(120)
    assert deployment.control.online() - {node} == before, (tmp_path / "log").read_text()


@pytest.mark.parametrize("path", HIDDEN)
def test_other_paths_are_not_forwarded(deployment, proxy, path):
    for method in ("GET", "POST"):
        assert status(deployment, proxy, method, path) in (400, 403, 404)
    assert status(deployment, proxy, "POST", "/v1/fleet/activate-node") not in (403, 404)  # this one is


def test_updates_pass_through_without_files(deployment, proxy):
    """As root, nginx has workers of another user, who cannot write into its folder."""
    assert status(deployment, proxy, "POST", "/v1/fleet/activate-node", bytes(5_000_000)) == 400  # by the SuperLink


def test_a_stranger_with_the_authoritys_certificate_starts_nothing(deployment, proxy, tmp_path):
    stranger = ControlClient(f"localhost:{proxy}", deployment.certificates.authority, tmp_path / "home")
    app = write_app(tmp_path / "app", configuration("SCAFFOLD").kept())
    calls = [
        lambda: stranger.start(app, {}),
        lambda: stranger.register(make_key(tmp_path / "key").public),
        stranger.online,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="because it fails"):
            call()
    assert not stranger.listening()
