"""Adapters on models of `transformers`: those of `fm.models.lora`, and those of `peft` as they are."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmos as fm
from helpers.conformance import DEVICE

transformers = pytest.importorskip("transformers")

T, TOKENS = 5, 20
TEXT = {"vocab_size": TOKENS, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
FAMILIES = {
    "DistilBert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": T},
    "GPT2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": T},
    "Bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    | {"max_position_embeddings": T},
}
TARGETS = {"DistilBert": ["q_lin", "v_lin", "lin1"], "GPT2": ["c_attn"], "Bert": ["query", "value", "word_embeddings"]}
HEADS = {"DistilBert": ["pre_classifier", "classifier"], "GPT2": ["score"], "Bert": ["classifier"]}


def classifier(family) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**TEXT | FAMILIES[family])
    return getattr(transformers, f"{family}ForSequenceClassification")(config)


def ours(family) -> nn.Module:
    train = [f"{head}.*" for head in HEADS[family]]
    return fm.models.lora(classifier(family), 2, TARGETS[family], alpha=8, dropout=0.1, train=train)


def of_peft(family) -> nn.Module:
    peft = pytest.importorskip("peft")
    how = {"target_modules": TARGETS[family], "modules_to_save": HEADS[family], "fan_in_fan_out": family == "GPT2"}
    torch.manual_seed(1)
    return peft.get_peft_model(classifier(family), peft.LoraConfig(r=2, lora_alpha=8, lora_dropout=0.1, **how))


def inputs(n, rng) -> dict[str, np.ndarray]:
    mask = (np.arange(T) < rng.integers(2, T + 1, size=(n, 1))).astype(np.int64)
    return {"input_ids": rng.integers(1, TOKENS, size=(n, T)), "attention_mask": mask}


def federation() -> fm.FederatedData:
    rng = np.random.default_rng(0)
    return fm.FederatedData.from_arrays([(inputs(n, rng), rng.integers(3, size=n)) for n in (5, 3, 4)])


def train(model, engine="batched", **changes) -> fm.Result:
    how = {"rounds": 1, "local_steps": 3, "batch_size": 3, "dtype": torch.float64, "device": DEVICE}
    return fm.run(model, federation(), fm.FedAvg(lr=0.3), fm.Full(), engine=engine, **how | changes)


@pytest.mark.parametrize("adapted", [ours, of_peft])
@pytest.mark.parametrize("family", FAMILIES)
def test_engines_agree_and_adapters_and_head_are_trained(family, adapted):
    model = adapted(family)
    loop, batched = (train(model, engine) for engine in ("loop", "batched"))
    assert torch.allclose(loop.params, batched.params, rtol=0, atol=1e-10)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert loop.history[0].bytes_up == 3 * 8 * sum(p.numel() for p in trained.values())
    assert all("lora_" in name or any(head in name for head in HEADS[family]) for name in trained)
    for name, p in loop.model.named_parameters():
        same = torch.equal(p, model.get_parameter(name).detach().to(p))
        assert same == (name not in trained), name


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_are_those_of_peft(family):
    """With the initial values of one in the other."""
    a, b = ours(family), of_peft(family)
    with torch.no_grad():
        theirs = {name.removeprefix("base_model.model."): p for name, p in b.named_parameters() if p.requires_grad}
        for name, p in theirs.items():
            plain = name.replace(".default", "").replace("lora_embedding_A", "lora_A.weight")
            plain = plain.replace("lora_embedding_B", "lora_B.weight").replace(".modules_to_save", "")
            own = a.get_parameter(plain)
            own.copy_(p.mT if "lora_embedding_A" in name else p)
            if "lora_" in plain:
                nn.init.normal_(own, generator=torch.Generator().manual_seed(3))
                p.copy_(own.mT if "lora_embedding_A" in name else own)
    batch = {name: torch.tensor(v) for name, v in inputs(4, np.random.default_rng(1)).items()}
    with torch.no_grad():
        expected = b.eval()(**batch).logits
        assert torch.allclose(a.eval()(**batch).logits, expected, atol=1e-5)
        assert torch.allclose(fm.models.merge_lora(a)(**batch).logits, expected, atol=1e-5)
        assert torch.allclose(b.merge_and_unload()(**batch).logits, expected, atol=1e-5)


def test_a_result_of_peft_predicts_merges_and_loads(tmp_path):
    model = of_peft("DistilBert")
    result = train(model, out=tmp_path / "run")
    batch = {name: torch.tensor(v) for name, v in inputs(4, np.random.default_rng(1)).items()}
    predicted = result.predict(batch)
    assert torch.equal(fm.Result.load(tmp_path / "run", of_peft("DistilBert")).predict(batch), predicted)
    with torch.no_grad():
        assert torch.allclose(result.model.merge_and_unload().eval()(**batch).logits, predicted, atol=1e-10)


def test_a_merged_language_model_keeps_its_last_layer_when_it_is_loaded_again(tmp_path):
    """GPT-2's last layer has the weights of the embedding, which an adapter on the layer alone unties."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**{k: v for k, v in TEXT.items() if k != "num_labels"} | FAMILIES["GPT2"])
    adapted = fm.models.lora(transformers.GPT2LMHeadModel(config), 2, "lm_head")
    assert adapted.lm_head.base_layer.weight is adapted.transformer.wte.weight
    nn.init.normal_(adapted.lm_head.lora_B.weight)
    merged = fm.models.merge_lora(adapted).eval()
    merged.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    tokens = torch.arange(T)[None]
    with torch.no_grad():
        outputs = [model(tokens).logits for model in (adapted.eval(), merged, again)]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-5)
    assert torch.allclose(outputs[1], outputs[2], atol=1e-6)
