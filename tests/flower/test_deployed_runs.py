"""A deployment gives the same cohorts, weights, bytes and bits as the simulation.

Here the network is a grid in this process (`helpers.flower_network`); processes on a real one are in `deploy/`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Context, RecordDict

from fedmos.config.schema import RunConfig, load
from fedmos.flower import Deploy, client_app, server_app
from fedmos.flower.deployment import Deployment
from fedmos.flower.local.app_template import write_app
from fedmos.flower.server import serve
from fedmos.storage import toml
from helpers import own_classes
from helpers.conformance import EACH, Case
from helpers.extended import Extended
from helpers.flower_network import Network
from helpers.flower_runs import CLIENTS, SELECTORS, arguments, assert_same, federation


def test_no_selector_goes_untested():
    assert {type(selector).__name__ for selector in SELECTORS.values()} == set(fm.selectors())


def compare(deployed: Any, case: Case, selector: str, **changes: Any) -> None:
    given = arguments(algorithm=case.make(lr=0.1), selection=SELECTORS[selector], **changes)
    assert_same(deployed(given).run(), fm.run(**given))


@pytest.mark.parametrize("case", EACH, ids=str)
@pytest.mark.extended
def test_every_algorithm(deployed, case):
    """With a selector that asks for losses, so that x is held before it is needed."""
    compare(deployed, case, "pow-d")


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.extended
def test_every_selector(deployed, selector):
    compare(deployed, Case("Scaffold", (2, 2)), selector)


@pytest.mark.slow
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("case", EACH, ids=str)
def test_every_algorithm_with_every_selector(deployed, case, selector):
    compare(deployed, case, selector)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "batched"},
        {"local_steps": None, "local_epochs": 2},
        {"batch_size": None},
        {"dtype": torch.float64, "clip": 0.5, "weight_decay": 0.01, "lr_decay": 0.9},
        {"lr_decay": fm.schedules.Warmup(2, then=fm.schedules.Cosine(rounds=2))},
        {"availability": fm.Alternating(groups=2, drop=0.2)},
        {"system": fm.System(over_select=1.5, quorum=0.5)},
        {"model": torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))},
        {"selection": fm.FixedCohorts([[1], [0, 4]]), "engine": "batched"},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_settings(deployed, changes):
    given = arguments(algorithm=fm.FedHBM(lr=0.1)) | changes
    assert_same(deployed(given).run(), fm.run(**given))


def test_clients_with_data_of_their_own(tmp_path):
    """The server learns how many samples they have, and nothing else of them."""
    data, names = federation(), [f"site-{i}" for i in range(CLIENTS)]
    given = arguments(algorithm=fm.Scaffold(lr=0.1), selection=fm.ACS(m=3))
    deploy = Deploy(clients=names, wait=1.0, rejoin=0.2, poll=0.001)
    config = {name: v for name, v in given.items() if name != "data"} | {"deploy": deploy}
    network = Network(
        lambda: client_app(config, data=lambda name: data.client(names.index(name))), tmp_path / "state", names
    )
    result = serve(network, Deployment.of(config), tmp_path / "run", test=data.test)
    assert_same(result, fm.run(**given))


def test_training_loss_is_asked_for(deployed):
    given = arguments(target={"train_loss": 0.0})
    result, expected = deployed(given, train_metrics=True).run(), fm.run(**given)
    assert [r.train_loss for r in result.history] == pytest.approx([r.train_loss for r in expected.history], rel=1e-6)
    assert_same(result, expected)
    with pytest.raises(ValueError, match="Cannot stop at train_loss because"):
        deployed(given).run()


CONFIG = """
rounds = 3
local_steps = 2
batch_size = 8
engine = "loop"
seed = 2
device = "cpu"
[data]
name = "digits"
clients = 4
partition = {name = "Dirichlet", alpha = 1.0}
[model]
name = "logistic"
features = 64
[algorithm]
name = "FedMoS"
lr = 0.1
[selection]
name = "ACS"
m = 2
[deploy]
clients = ["north", "east", "south", "west"]
wait = 1.0
poll = 0.001
"""


def test_apps_from_a_configuration(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    network = Network(lambda: client_app(path), tmp_path / "state", ["west", "north", 2, "east"])
    run = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"out": str(tmp_path / "run")})
    server_app(path)(network, run)
    settings = load(RunConfig, path)
    expected = fm.run(**settings.arguments(settings.algorithm, settings.selection, settings.seed))
    assert_same(fm.Result.load(tmp_path / "run"), expected)


def test_an_app_with_own_classes_takes_their_file_along(tmp_path):
    settings = {name: value for name, value in own_classes.RUN.items() if name != "target"}
    deploy = {"clients": ["a", "b", "c", "d"], "wait": 1.0, "poll": 0.001}
    (tmp_path / "mine.py").write_text(own_classes.MINE)
    (tmp_path / "own.toml").write_text(toml.dumps(settings | {"engine": "loop", "device": "cpu", "deploy": deploy}))
    configured = load(RunConfig, tmp_path / "own.toml")
    expected = fm.run(**configured.arguments(configured.algorithm, configured.selection, configured.seed))
    write_app(tmp_path / "app", configured.kept())
    (tmp_path / "mine.py").unlink()
    path = tmp_path / "app" / "app" / "run.toml"
    assert load(RunConfig, path).algorithm.name == f"{path.parent / 'mine.py'}:Half"
    network = Network(lambda: client_app(path), tmp_path / "state", deploy["clients"])
    assert_same(serve(network, Deployment.of(path), tmp_path / "run"), expected)


def test_tensors_of_every_declared_shape_travel_as_declared(deployed):
    """Numbers, numbers per layer and rows; x itself is not sent, so the bytes are those of z and the rest."""
    given = arguments(algorithm=Extended(lr=0.1))
    result = deployed(given).run()
    assert_same(result, fm.run(**given))
    D, L = len(result.params), 4
    assert all(record.bytes_down == 3 * 4 * (D + 1 + L) for record in result.history)
    assert all(record.bytes_up == 3 * 4 * (D + 1 + L + 2) for record in result.history)
