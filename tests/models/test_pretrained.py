"""Weights from a folder."""

import json
import sys

import pytest
import torch

import fedmos as fm
from fedmos.config import registry as registry
from helpers.models import flat, samples


# Weights from a folder
@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


CASES = {"mobilenet_v2": "MobileNetV2", "vit_b16": "ViT"}


@pytest.fixture(params=CASES)
def folder(request, tmp_path, transformers):
    """A small pretrained model of seven classes, as the library saves it: its function, and its folder."""
    name, family = request.param, CASES[request.param]
    small = (
        {"depth_multiplier": 0.1}
        if name == "mobilenet_v2"
        else {
            "image_size": 32,
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        }
    )
    config = getattr(transformers, f"{family}Config")(num_labels=7, **small)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, f"{family}ForImageClassification")(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(tmp_path)
    transformers.utils.logging.enable_progress_bar()
    return getattr(fm.models, name), tmp_path, model


def test_weights_come_from_a_folder(folder, capfd):
    make, path, saved = folder
    before = torch.get_rng_state()
    same = make(classes=7, weights=path)
    assert torch.equal(flat(same), flat(saved))
    new, again, other = (make(classes=3, weights=str(path), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    head = new.network.classifier
    assert new(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert new.training
    assert torch.equal(flat(new), flat(again))
    assert not torch.equal(head.weight, other.network.classifier.weight)
    body = flat(new)[: -head.weight.numel() - 3]
    assert torch.equal(body, flat(saved)[: len(body)])
    assert capfd.readouterr().err == ""


def test_a_pretrained_model_trains(folder):
    make, path, _ = folder
    data = fm.FederatedData.from_arrays([samples("vit_b16", 2), samples("vit_b16", 3, seed=1)])
    model = make(classes=6, weights=path)
    how = {"rounds": 1, "local_steps": 1, "batch_size": 2, "engine": "batched", "device": "cpu"}
    result = fm.run(model, data, fm.FedMoS(lr=0.01), fm.Full(), **how)
    assert not torch.equal(result.params, flat(model))


def test_weights_without_a_head_get_one(tmp_path, transformers):
    """A ViTModel, as the weights of ImageNet-21k are published, in the names it has in its file."""
    small = {"image_size": 32, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    body = transformers.ViTModel(transformers.ViTConfig(**small, intermediate_size=64))
    transformers.utils.logging.disable_progress_bar()
    body.save_pretrained(tmp_path)
    transformers.utils.logging.enable_progress_bar()
    model = fm.models.vit_b16(classes=4, weights=tmp_path)
    assert torch.equal(model.network.vit.embeddings.position_embeddings, body.embeddings.position_embeddings)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


def test_weights_that_do_not_fit_are_refused(folder, tmp_path_factory):
    make, path, _ = folder
    name = make.__name__
    empty = tmp_path_factory.mktemp("empty")
    (empty / "config.json").write_text("{}")
    (empty / "pytorch_model.bin").write_bytes(b"never read")
    for wrong in (empty, empty / "nowhere", 3):
        with pytest.raises(ValueError, match=f"{name}: 'weights' must be a folder with config.json and model.saf"):
            make(weights=wrong)
    other = {"depth_multiplier": 0.2} if name == "mobilenet_v2" else {"image_size": 48}
    with pytest.raises(ValueError, match=f"{name}: 'weights' must fit the model, but lack"):
        make(weights=path, **other)


def test_the_settings_of_a_folder_cannot_bring_back_functional_dropout(folder):
    make, path, _ = folder
    settings = json.loads((path / "config.json").read_text())
    settings |= {"attention_probs_dropout_prob": 0.5, "hidden_dropout_prob": 0.5, "classifier_dropout_prob": 0.5}
    (path / "config.json").write_text(json.dumps(settings))
    model = make(weights=path)
    before = torch.get_rng_state()
    x = torch.zeros(2, 3, 32, 32)
    assert torch.equal(model(x), model(x))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CASES)
def test_without_the_library_there_is_a_sentence(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=rf"^{name} needs transformers; pip install 'fedmos\[transformers\]'$"):
        getattr(fm.models, name)()
