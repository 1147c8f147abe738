"""`fedmos deploy keys`: create, add, renew, show."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
from cryptography import x509
from cryptography.x509 import verification

from fedmos.cli.commands import app
from fedmos.flower.local.certificates import Certificates, client_key, make_certificates, renew_certificates


def call(*arguments: object, fails: bool = False) -> str:
    done = CliRunner().invoke(app, ["deploy", "keys", *map(str, arguments)])
    assert (done.exit_code != 0) == fails, done.output + str(done.exception)
    return " ".join(done.output.split())


@pytest.fixture
def folder(tmp_path) -> Path:
    call(tmp_path / "keys", "--host", "fl.test", "--client", "site.1", "--client", "site.2")
    return tmp_path / "keys"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_names_with_a_dot_get_files_of_their_own(folder):
    names = ("site.1", "site.1.pub", "site.2", "site.2.pub")
    assert len({(folder / name).read_bytes() for name in names}) == 4


def test_secrets_are_readable_by_their_owner_only(folder):
    for name in ("ca.key", "server.key", "apps.secret", "site.1", "site.2"):
        assert mode(folder / name) == 0o600
    assert len((folder / "apps.secret").read_bytes()) == 32


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", "/etc/x", "a\\b", ".hidden", "a b", "-x", "ca", "server", "apps", "x.pub", "x.key", "é"]
)
def test_names_that_cannot_be_files_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="the name of a client must be"):
        client_key(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_further_key(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    said = call("add", folder, "site.3")
    assert "register" in said
    assert mode(folder / "site.3") == 0o600
    assert {path: path.read_bytes() for path in before} == before


def test_a_client_makes_its_own_key(tmp_path):
    call("add", tmp_path / "own", "hospital-a")
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["apps.secret", "hospital-a", "hospital-a.pub"]


def test_a_key_is_never_replaced(folder):
    before = (folder / "site.1").read_bytes()
    call("add", folder, "site.1", fails=True)
    assert (folder / "site.1").read_bytes() == before


def verifies(authority: bytes, server: bytes, at: datetime) -> bool:
    load = x509.load_pem_x509_certificate
    policy = verification.PolicyBuilder().store(verification.Store([load(authority)])).time(at)
    try:
        policy.build_server_verifier(x509.DNSName("fl.test")).verify(load(server), [])
    except verification.VerificationError:
        return False
    return True


def test_renewed_certificates_are_accepted_with_the_old_and_the_new_authority(tmp_path):
    made, now = make_certificates(tmp_path, ["fl.test"], days=2), datetime.now(UTC)
    old, old_server, keys = made.authority.read_bytes(), made.server.read_bytes(), made.server_key.read_bytes()
    renew_certificates(tmp_path, days=30, further_hosts=["other.test"])
    assert made.server_key.read_bytes() == keys
    new, server = made.authority.read_bytes(), made.server.read_bytes()
    assert verifies(old, server, now)
    assert verifies(new, server, now)
    assert verifies(new, old_server, now)
    later = now + timedelta(days=10)
    assert verifies(new, server, later)
    assert not verifies(old, server, later)
    assert not verifies(new, old_server, later)
    assert {"fl.test", "other.test", "localhost", "127.0.0.1"} == set(made.hosts())


def test_the_command_shows_expiry_and_names(folder):
    said = call("renew", folder, "--days", 10, "--host", "second.test")
    assert "in 9 days" in said
    assert "Give the new" in said
    shown = call("show", folder)
    assert "second.test" in shown
    assert "in 9 days" in shown
    assert "site.1, site.2" in shown


def test_an_expired_certificate_is_named(tmp_path, monkeypatch):
    from fedmos.flower.local import certificates

    monkeypatch.setattr(certificates, "_CLOCK_TOLERANCE", timedelta(days=9))
    make_certificates(tmp_path, ["a.test"], days=-5)
    assert "has expired" in call("show", tmp_path)


def test_nothing_to_renew(tmp_path):
    with pytest.raises(FileNotFoundError, match="Cannot renew the certificates because"):
        renew_certificates(tmp_path)


def test_options_may_come_first(tmp_path):
    call("--host", "fl.test", tmp_path / "keys")
    assert Certificates(tmp_path / "keys").server.exists()
