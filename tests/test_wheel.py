"""The wheel, installed without extras, works from another folder with nothing but its declared dependencies."""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedmos as fm

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for stale in (folder / "src").glob("*.egg-info"):
        shutil.rmtree(stale)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder, cwd=folder)
    return folder / "dist"


def needed(requirements: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that requirements bring, without extras, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = list(map(Requirement, requirements))
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = importlib.metadata.distribution(name)
        left += map(Requirement, found[name].requires or [])
    return found


@pytest.fixture(scope="module")
def environment(distributions, tmp_path_factory) -> Path:
    """A virtual environment with the wheel and links to its declared dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in needed(PROJECT["dependencies"]).values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    (wheel,) = distributions.glob("*.whl")
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder


def test_distributions_are_complete_and_valid(distributions):
    (sdist,) = distributions.glob("*.tar.gz")
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=distributions)
    source = ROOT / "src"
    expected = {path.relative_to(source).as_posix() for path in source.rglob("*.py")} | {"fedmos/py.typed"}
    for folder in ("config/builtin", "experiments/reproduce/studies", "experiments/reproduce/exams"):
        expected |= {path.relative_to(source).as_posix() for path in (source / "fedmos" / folder).glob("*.toml")}
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in expected} | {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_environment_has_declared_dependencies_only(environment, tmp_path):
    extras = [Requirement(text).name for texts in PROJECT["optional-dependencies"].values() for text in texts]
    absent = {canonicalize_name(name) for name in extras} - set(needed(PROJECT["dependencies"])) - {"fedmos"}
    assert {"datasets", "flwr", "matplotlib", "optuna", "pandas", "pytest"} <= absent
    code = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
    there = {canonicalize_name(name) for name in run(environment / "bin" / "python", "-c", code, cwd=tmp_path).split()}
    assert not there & absent
    assert there == {"fedmos", *needed(PROJECT["dependencies"])}


def test_the_demo_runs_from_another_folder(environment, tmp_path):
    fedmos = environment / "bin" / "fedmos"
    assert run(fedmos, "--version", cwd=tmp_path) == f"fedmos {fm.__version__}\n"
    small = ["--set", "rounds=2", "--set", "seeds=[0]", "--set", "tune.lr=[0.1]"]
    shown = run(fedmos, "demo", "--quiet", *small, "--out", "demo", cwd=tmp_path)
    assert "FedMoS" in shown
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert "| FedAvg |" in (tmp_path / "demo" / "table.md").read_text()
    where = run(environment / "bin" / "python", "-c", "import fedmos; print(fedmos.__file__)", cwd=tmp_path)
    assert where.startswith(str(environment))


def test_commands_that_read_packaged_files_work(environment, tmp_path):
    fedmos = environment / "bin" / "fedmos"
    assert "flamby-heart" in run(fedmos, "exam", "--list", cwd=tmp_path)
    assert "fedmos-table1" in run(fedmos, "reproduce", "--list", cwd=tmp_path)
    assert "FedMoS" in run(fedmos, "list", cwd=tmp_path)
