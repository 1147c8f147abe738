"""The examples that users copy: they run, learn, and give results per client."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hospitals", "images_in_folders", "text_classifier"])
def test_examples_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def test_class_weights_find_the_rare_class_in_every_hospital():
    example = load("hospitals")
    plain, data = example.train(rounds=15, class_weights=None)
    balanced, _ = example.train(rounds=15)
    assert plain.history[-1].metrics["balanced_accuracy"] < 0.6 < balanced.history[-1].metrics["balanced_accuracy"]
    found = example.recalls(balanced, data)
    assert len(found) >= 3
    assert all(found[name] > recall + 0.3 for name, recall in example.recalls(plain, data).items())


def test_images_in_folders(tmp_path):
    example = load("images_in_folders")
    example.write_folders(tmp_path)
    result, data = example.train(tmp_path, rounds=8)
    assert result.history[-1].accuracy > 0.6
    assert set(example.accuracy_by_writer(result, data)) == {f"writer-{i}" for i in range(10)}


def test_a_hugging_face_classifier_learns_from_text():
    result, data = load("text_classifier").train(rounds=5)
    assert data.names[0] == "DUKE VINCENTIO"
    assert result.history[-1].metrics["auc"] > 0.68
    assert result.history[-1].test_loss < result.history[0].test_loss
    assert result.predict(data.client(0)[0]).shape == (402, 2)
