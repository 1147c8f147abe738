"""Who is turned away: without TLS, by a stranger's authority, without a key that is registered."""

import subprocess

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmos.flower.local.certificates import make_certificates, make_key
from fedmos.flower.local.environment import flower_environment
from fedmos.flower.local.local_deployment import free_ports

pytestmark = pytest.mark.deploy
TRUSTING = ["--root-certificates", "{authority}"]
STRANGERS = {
    "no TLS": (["--insecure"], "Failed to initialize the connection"),
    "wrong authority": (
        ["--root-certificates", "{other}/ca.pem", "--auth-supernode-private-key", "{key}"],
        "certificate verify failed",
    ),
    "no key": (TRUSTING, "All SuperNodes must be registered"),
    "unregistered key": ([*TRUSTING, "--auth-supernode-private-key", "{key}"], "Failed to activate SuperNode"),
}


@pytest.fixture(scope="module")
def turned_away(deployment, tmp_path_factory):
    """What each stranger said before it gave up; they try at the same time."""
    folder = tmp_path_factory.mktemp("strangers")
    make_certificates(folder / "other", ["127.0.0.1"])
    places = {"other": folder / "other", "authority": deployment.certificates.authority}
    places["key"] = make_key(folder / "key").private
    before = deployment.control.online()
    tries = {}
    for (name, (arguments, _)), port in zip(STRANGERS.items(), free_ports(len(STRANGERS)), strict=True):
        command = ["flower-supernode", "--superlink", deployment.address, "--port", str(port), "--isolation", "process"]
        command += ["--max-retries", "1", "--max-wait-time", "5", *(text.format(**places) for text in arguments)]
        tries[name] = subprocess.Popen(
            command, env=flower_environment(folder, 0.1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    try:
        said = {name: (process.communicate(timeout=600)[0], process.returncode) for name, process in tries.items()}
    finally:
        for process in tries.values():
            process.kill()
    assert deployment.control.online() == before
    return said


@pytest.mark.parametrize("stranger", STRANGERS)
def test_an_unknown_node_is_refused(turned_away, stranger):
    said, code = turned_away[stranger]
    assert code != 0
    assert STRANGERS[stranger][1] in said, said


def test_a_client_cannot_pretend_to_be_another(deployment):
    """Its public key is known to all, but who signs with another private key is not believed."""
    public = load_ssh_public_key(deployment.nodes[0].key.public.read_bytes())
    forged = NodeAuthHttpInterceptor(generate_key_pairs()[0], public)
    authority = deployment.certificates.authority.read_bytes()
    version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    with (
        FleetHttpClient.from_server_address(deployment.address, False, authority, [version, forged]) as client,
        pytest.raises(httpx.HTTPStatusError) as refusal,
    ):
        client.ActivateNode(ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30))
    assert refusal.value.response.status_code == httpx.codes.UNAUTHORIZED


@pytest.mark.parametrize("secret", [None, b"a guess"])
def test_tasks_are_given_only_to_holders_of_the_secret(deployment, secret):
    method = "/flwr.proto.Runtime/AcquireTask"
    interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({method})))
    for address, authority in (
        (deployment.address, deployment.certificates.authority.read_bytes()),
        (deployment.nodes[0].address, None),
    ):
        client = RuntimeHttpClient.from_server_address(address, authority is None, authority, interceptors)
        with pytest.raises(httpx.HTTPStatusError) as refusal:
            client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP, TaskType.CLIENT_APP]))
        client.close()
        assert refusal.value.response.status_code == httpx.codes.UNAUTHORIZED
