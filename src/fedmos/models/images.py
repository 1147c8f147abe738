"""Linear and convolutional networks for images."""

from __future__ import annotations

from torch import nn

from .seeded import checked, seeded


def _dropout(layer: nn.Module, on: bool) -> list[nn.Module]:
    return [layer] if on else []


@checked
def logistic(features: int = 784, classes: int = 10, seed: int = 0) -> nn.Module:
    """Multinomial logistic regression on flattened inputs.

    Args:
        features: Number of inputs.
        classes: Number of classes.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.logistic(features=64)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(features, classes)), seed)


@checked
def mlp(features: int = 784, classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """Power-of-Choice's network: features-64-30-classes, 52,500 parameters for 28×28 images and 10 classes.

    Args:
        features: Number of inputs.
        classes: Number of classes.
        dropout: Use dropout before the last layer.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.mlp(features=64)(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, 64),
            nn.ReLU(),
            nn.Linear(64, 30),
            nn.ReLU(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(30, classes),
        ),
        seed,
    )


@checked
def mlp_cifar(features: int = 3072, classes: int = 10, seed: int = 0) -> nn.Module:
    """The FedMoS text's "three fully connected layers" for CIFAR-10: 3072-120-84-10, 379,774 parameters.

    The text gives no sizes. 120 and 84 are those of the three linear layers in a network for CIFAR-10
    that is commented out in the released code; the code runs `cnn_cifar`.

    Args:
        features: Number of inputs.
        classes: Number of classes.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.mlp_cifar()(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(features, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        ),
        seed,
    )


@checked
def cnn_mnist(classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """FedMoS's network for MNIST: two 5×5 convolutions and two linear layers, 21,840 parameters.

    Args:
        classes: Number of classes.
        dropout: Use dropout after the second convolution and before the last layer.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.cnn_mnist()(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            *_dropout(nn.Dropout2d(0.5), dropout),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(320, 50),
            nn.ReLU(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(50, classes),
        ),
        seed,
    )


@checked
def cnn_cifar(classes: int = 10, channels: int = 3, dropout: bool = False, seed: int = 0) -> nn.Module:
    """The released FedMoS network for CIFAR-10: three 3×3 convolutions, two linear layers, 122,570 parameters.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        dropout: Use dropout after each convolution.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.cnn_cifar()(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 10])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *_dropout(nn.Dropout(0.2), dropout),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *_dropout(nn.Dropout(0.2), dropout),
            nn.Conv2d(64, 64, 3),
            *_dropout(nn.Dropout(0.2), dropout),
            nn.Flatten(),
            nn.Linear(1024, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        ),
        seed,
    )


@checked
def cnn_digits(classes: int = 10, dropout: bool = False, seed: int = 0) -> nn.Module:
    """A small network for 8×8 digits: two 3×3 convolutions and a linear layer, 1,898 parameters.

    Args:
        classes: Number of classes.
        dropout: Use dropout before the last layer.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.cnn_digits()(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *_dropout(nn.Dropout(0.5), dropout),
            nn.Linear(64, classes),
        ),
        seed,
    )


@checked
def lenet(classes: int = 10, channels: int = 3, seed: int = 0) -> nn.Module:
    """GHBM's CNN "similar to LeNet-5" for 32×32 images: 797,962 parameters for 10 classes.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.lenet(classes=100)(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 100])
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(channels, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1600, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, classes),
        ),
        seed,
    )


@checked
def simple_cnn(classes: int = 10, channels: int = 3, size: int = 32, seed: int = 0) -> nn.Module:
    """NIID-Bench's "simple-cnn": two 5×5 convolutions, three linear layers, 62,006 parameters for CIFAR-10.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        size: Height and width of the images, at least 16.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.simple_cnn(channels=1, size=28)(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """
    if size < 16:
        raise ValueError(f"simple_cnn: 'size' must be ≥ 16, got {size}")
    return seeded(
        lambda: nn.Sequential(
            *_two_convolutions(channels, 6, 16),
            nn.Flatten(),
            nn.Linear(16 * _side_after(size) ** 2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        ),
        seed,
    )


@checked
def cnn_pfllib(classes: int = 10, channels: int = 1, size: int = 28, seed: int = 0) -> nn.Module:
    """PFLlib's "FedAvgCNN": two 5×5 convolutions and two linear layers, 582,026 parameters for 28×28 images.

    Args:
        classes: Number of classes.
        channels: Number of channels of the images.
        size: Height and width of the images, at least 16.
        seed: Seed of the initial weights.

    Example:
        >>> fm.models.cnn_pfllib()(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """
    if size < 16:
        raise ValueError(f"cnn_pfllib: 'size' must be ≥ 16, got {size}")
    return seeded(
        lambda: nn.Sequential(
            *_two_convolutions(channels, 32, 64),
            nn.Flatten(),
            nn.Linear(64 * _side_after(size) ** 2, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        ),
        seed,
    )


def _two_convolutions(channels: int, first: int, second: int) -> list[nn.Module]:
    """Return two 5×5 convolutions without padding, each with ReLU and pooling."""
    return [
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def _side_after(size: int) -> int:
    """Return height and width after `_two_convolutions`."""
    return ((size - 4) // 2 - 4) // 2
