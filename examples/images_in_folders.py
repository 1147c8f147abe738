"""Images in folders, CLIENT/CLASS/image.png: handwritten digits of ten writers, each with some of the digits.

python examples/images_in_folders.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

import fedmos as fm


def write_folders(root: Path) -> None:
    """Write the digits of scikit-learn as PNG files: train/WRITER/DIGIT/number.png and test/DIGIT/number.png."""
    digits = load_digits()
    images = (digits.images * 15.9375).astype(np.uint8)
    for number, (image, digit) in enumerate(zip(images, digits.target, strict=True)):
        writer = (int(digit) + int(np.random.default_rng(number).integers(3))) % 10  # three digits per writer
        folder = root / "test" / str(digit) if number % 5 == 0 else root / "train" / f"writer-{writer}" / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
    )  # fmt: skip


def train(root: Path, rounds: int = 40) -> tuple[fm.Result, fm.FederatedData]:
    data = fm.FederatedData.from_folder(root)
    data = data.declare(normalize=fm.Normalize(mean=0.3, std=0.35))
    algorithm, selection = fm.FedMoS(lr=0.05), fm.ACS(m=5)
    return fm.run(model(), data, algorithm, selection, rounds=rounds, local_steps=10, batch_size=20), data


def accuracy_by_writer(result: fm.Result, data: fm.FederatedData) -> dict[str, float]:
    """Return the accuracy of the global model on each writer's own digits."""
    found = {}
    for name in data.names:
        x, y = data.client(name)
        found[name] = round(float((result.predict(x).argmax(1) == y).double().mean()), 3)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_folders(Path(folder))
        result, data = train(Path(folder))
        print(result)
        print("accuracy by writer:", accuracy_by_writer(result, data))
