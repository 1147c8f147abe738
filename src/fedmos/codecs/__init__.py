"""Codecs: what is sent in place of a vector of numbers.

Example:
    >>> codec = fm.codecs.Quantize(4)
    >>> v = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))  # of three clients
    >>> fields = codec.encode(v, key=torch.tensor([1, 2, 3]))
    >>> sum(field.nbytes for field in fields.values()) == 3 * codec.nbytes(1000)
    True
    >>> codec.decode(fields, 1000, key=torch.tensor([1, 2, 3])).shape
    torch.Size([3, 1000])
"""

from .chain import Chain
from .codec import Codec
from .error_feedback import ErrorFeedback
from .float16 import Float16
from .quantize import Quantize
from .random_k import RandomK
from .rotate import Rotate
from .sign import Sign
from .streams import uniform
from .top_k import TopK

__all__ = [
    "Chain",
    "Codec",
    "ErrorFeedback",
    "Float16",
    "Quantize",
    "RandomK",
    "Rotate",
    "Sign",
    "TopK",
    "uniform",
]
