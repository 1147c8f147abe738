"""Text with a small Hugging Face classifier: which lines of Shakespeare are questions? Every speaker is a client.

python examples/text_classifier.py
"""

import re
from collections import Counter
from importlib.resources import files

import torch
from transformers import BertConfig, BertForSequenceClassification

import fedmos as fm

LENGTH, WORDS, SPEAKERS = 12, 400, 30  # words of a line, of the vocabulary; clients


def lines_by_speaker() -> dict[str, list[tuple[list[str], int]]]:
    """Return (words, is a question) of every sentence, by speaker; the punctuation that gives the answer is removed."""
    text = files("fedmos.data").joinpath("texts", "tinyshakespeare.txt").read_text("utf-8")
    found: dict[str, list[tuple[list[str], int]]] = {}
    for speech in text.split("\n\n"):
        speaker, _, said = speech.partition(":\n")
        for sentence, end in re.findall(r"([^.!?]+)([.!?])", said):
            words = re.findall(r"[a-z']+", sentence.lower())
            if len(words) > 1:
                found.setdefault(speaker, []).append((words[:LENGTH], int(end == "?")))
    return {name: found[name] for name in sorted(found, key=lambda name: -len(found[name]))[: SPEAKERS + 10]}


def federation() -> fm.FederatedData:
    """The most frequent speakers are clients; the next ten, whom training never sees, are the test set."""
    lines = lines_by_speaker()
    counts = Counter(word for name in list(lines)[:SPEAKERS] for words, _ in lines[name] for word in words)
    number = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS))}  # 0: padding, 1: another word

    def arrays(pairs):
        tokens = [[number.get(word, 1) for word in words] + [0] * (LENGTH - len(words)) for words, _ in pairs]
        return torch.tensor(tokens), torch.tensor([label for _, label in pairs])

    names = list(lines)
    test = arrays([pair for name in names[SPEAKERS:] for pair in lines[name]])
    return fm.FederatedData.from_arrays({name: arrays(lines[name]) for name in names[:SPEAKERS]}, test=test)


def train(rounds: int = 60) -> tuple[fm.Result, fm.FederatedData]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS + 2, max_position_embeddings=LENGTH, **sizes))
    data, how = federation(), {"rounds": rounds, "local_steps": 10, "batch_size": 32}
    return fm.run(model, data, fm.FedAdam(lr=0.1, server_lr=0.03), fm.Uniform(m=6), **how), data


if __name__ == "__main__":
    result, data = train()
    print(result)
    for name in data.names[:10]:
        x, y = data.client(name)
        print(f"{name:20} {float((result.predict(x).argmax(1) == y).double().mean()):.3f} of {len(y)} lines")
