"""A table with a hospital column and a rare class: diagnosis of tumours at five hospitals that do not share patients.

The measurements are those of scikit-learn's breast cancer data. Each hospital has mostly tumours of one size. Malignant
tumours are rare: a model that finds none of them is right nine times of ten.

    python examples/hospitals.py
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import fedmos as fm

COLUMNS = ["mean texture", "mean smoothness", "mean symmetry", "mean fractal dimension"]


def patients():
    """Return a frame of patients; the columns `hospital` and `malignant` are beside the measurements."""
    frame = load_breast_cancer(as_frame=True).frame[[*COLUMNS, "mean radius", "target"]].copy()
    frame["malignant"] = 1 - frame.pop("target")
    rng = np.random.default_rng(0)
    rare = rng.permutation(frame.index[frame.malignant == 1])[40:]  # keep 40 of 212
    frame = frame.drop(index=rare).sample(frac=1, random_state=0)
    size = frame.pop("mean radius").rank(pct=True) + rng.normal(0, 0.3, len(frame))
    frame["hospital"] = np.array(["Aarau", "Basel", "Chur", "Davos", "Egg"])[size.rank(pct=True).mul(4.999).astype(int)]
    return frame


def train(rounds: int = 30, class_weights: str | None = "balanced") -> tuple[fm.Result, fm.FederatedData]:
    frame = patients()
    train_rows, test_rows = frame[: len(frame) * 4 // 5], frame[len(frame) * 4 // 5 :]
    inputs = train_rows[COLUMNS]
    data = fm.FederatedData.from_frame(train_rows, "hospital", "malignant", test=test_rows)
    data = data.declare(normalize=fm.Normalize(mean=inputs.mean().tolist(), std=inputs.std().tolist()))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(len(COLUMNS), 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    result = fm.run(
        model, data, fm.FedAvgM(lr=0.02), fm.Full(), rounds=rounds, local_steps=10, batch_size=16,
        class_weights=class_weights, metrics=[fm.metrics.AUC(), fm.metrics.BalancedAccuracy()],
    )  # fmt: skip
    return result, data


def recalls(result: fm.Result, data: fm.FederatedData) -> dict[str, float]:
    """Return the fraction of malignant tumours found, by hospital that has any."""
    found = {}
    for name in data.names:
        x, y = data.client(name)
        if (y == 1).any():
            found[name] = round(float((result.predict(x[y == 1]).argmax(1) == 1).double().mean()), 2)
    return found


if __name__ == "__main__":
    for weights in (None, "balanced"):
        result, data = train(class_weights=weights)
        print(weights, result.history[-1].metrics, "malignant tumours found:", recalls(result, data))
