"""The models of the papers. Each function returns a new module with initial weights that depend only on `seed`.

The functions raise ValueError if an argument is out of range.

Example:
    >>> network = fm.models.cnn_mnist(classes=10, seed=0)
    >>> sum(p.numel() for p in network.parameters())
    21840
"""

from .adapters import lora, merge_lora
from .fold import fold_batchnorm
from .images import cnn_cifar, cnn_digits, cnn_mnist, cnn_pfllib, lenet, logistic, mlp, mlp_cifar, simple_cnn
from .norm import GroupNorm, convert_batchnorm
from .pretrained import mobilenet_v2, vit_b16
from .resnet import resnet18, resnet20
from .text import LSTM, char_lstm, word_lstm

__all__ = [
    "LSTM",
    "GroupNorm",
    "char_lstm",
    "cnn_cifar",
    "cnn_digits",
    "cnn_mnist",
    "cnn_pfllib",
    "convert_batchnorm",
    "fold_batchnorm",
    "lenet",
    "logistic",
    "lora",
    "merge_lora",
    "mlp",
    "mlp_cifar",
    "mobilenet_v2",
    "resnet18",
    "resnet20",
    "simple_cnn",
    "vit_b16",
    "word_lstm",
]
