"""Clipping and noise of uploads at a client, by the client's own policy."""

from __future__ import annotations

from torch import Tensor

from ..algorithm import Vectors
from ..config.client_policy import ClientPolicy
from .request_journal import Question
from .secret_noise import ClientSecret, secret_normal
from .wire import norm_of


class UploadProtection:
    """Clips each uploaded vector and adds noise to it.

    The noise follows from a secret of the client and from the request, so that a repeated request gets the same noise
    and the server cannot average it away.

    Args:
        policy: The client's policy.
        secret: The client's secret.
    """

    def __init__(self, policy: ClientPolicy, secret: ClientSecret) -> None:
        self._policy, self._secret = policy, secret

    def __call__(self, uploads: Vectors, asked: Question) -> Vectors:
        """Return the uploads as the client sends them; single numbers are not changed."""
        clip = self._policy.clip_norm
        if clip is None:
            return uploads
        return {name: self._protected(name, v, clip, asked) if v.dim() else v for name, v in uploads.items()}

    def _protected(self, name: str, v: Tensor, clip: float, asked: Question) -> Tensor:
        norm = norm_of(v)
        clipped = v * (clip / norm) if norm > clip else v
        std = self._policy.noise_multiplier * clip
        if not std:
            return clipped
        noise = secret_normal(v.numel(), self._secret.seed(asked, name))
        return clipped + (std * noise.view(v.shape)).to(v)
