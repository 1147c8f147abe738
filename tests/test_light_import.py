"""`import fedmos` and `fm.run` need torch, numpy and safetensors; everything else is imported where it is used."""

import subprocess
import sys
import textwrap

BLOCKED = """
    import importlib.abc, importlib.metadata, sys

    ALLOWED = {"fedmos", "torch", "numpy", "safetensors"}


    def required(name):
        # The modules of a distribution and of what it requires.
        from packaging.requirements import Requirement

        seen, left = set(), [name]
        while left:
            one = left.pop().lower().replace("_", "-")
            if one in seen:
                continue
            seen.add(one)
            try:
                wanted = map(Requirement, importlib.metadata.requires(one) or [])
            except importlib.metadata.PackageNotFoundError:
                continue
            left += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
        return seen


    kept = set().union(*map(required, ALLOWED - {"fedmos"}))
    installed = importlib.metadata.packages_distributions()
    blocked = {
        module
        for module, owners in installed.items()
        if module != "fedmos" and not any(owner.lower().replace("_", "-") in kept for owner in owners)
    }
    for module in [name for name in sys.modules if name.partition(".")[0] in blocked]:
        del sys.modules[module]


    class Blocker(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in blocked:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


    sys.meta_path.insert(0, Blocker())
    assert {"pydantic", "scipy", "sklearn", "typer", "rich", "tomli_w", "pytest"} <= blocked
    assert not blocked & {"torch", "numpy", "safetensors"}
"""

RUN = """
    import numpy as np

    import fedmos as fm

    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 3)).astype("f4"), rng.integers(0, 2, 8)) for _ in range(5)]
    data = fm.FederatedData.from_arrays(clients[1:], test=clients[0])
    result = fm.run(
        model=fm.models.logistic(features=3, classes=2), data=data, algorithm=fm.FedMoS(lr=0.1), selection=fm.ACS(m=2),
        rounds=2, local_steps=2, batch_size=4,
    )
    assert len(result.history) == 2
    assert not blocked & {name.partition(".")[0] for name in sys.modules}
    print("trained")
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)


def test_a_run_needs_only_torch_numpy_and_safetensors():
    done = python(BLOCKED + RUN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"


def test_the_test_blocks_other_packages():
    done = python(BLOCKED + "    import scipy")
    assert done.returncode != 0
    assert "ModuleNotFoundError: No module named 'scipy'" in done.stderr
