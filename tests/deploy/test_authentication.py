"""Who is turned away: without TLS, by a stranger's authority, without a key that is registered."""

import subprocess

import pytest

from fedmos.deploy.certificates import make_certificates, make_key
from fedmos.deploy.environment import environment
from fedmos.deploy.local import _free_ports

STRANGERS = {
    "no TLS": (["--insecure"], "Failed to initialize the connection"),
    "wrong authority": (
        ["--root-certificates", "{other}/ca.pem", "--auth-supernode-private-key", "{key}"],
        "certificate",
    ),
    "no key": (["--root-certificates", "{authority}"], "code: 3"),
    "unregistered key": (
        ["--root-certificates", "{authority}", "--auth-supernode-private-key", "{key}"],
        "could not be activated",
    ),
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
    for (name, (arguments, _)), port in zip(STRANGERS.items(), _free_ports(len(STRANGERS)), strict=True):
        command = ["flower-supernode", "--superlink", deployment.address, "--port", str(port), "--isolation", "process"]
        command += ["--max-retries", "1", "--max-wait-time", "5", *(text.format(**places) for text in arguments)]
        tries[name] = subprocess.Popen(
            command, env=environment(folder, 0.1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    try:
        said = {name: (process.communicate(timeout=60)[0], process.returncode) for name, process in tries.items()}
    finally:
        for process in tries.values():
            process.kill()
    assert deployment.control.online() == before
    return said


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_turned_away(turned_away, stranger):
    said, code = turned_away[stranger]
    assert code != 0
    assert STRANGERS[stranger][1] in said, said
