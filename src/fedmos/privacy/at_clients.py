"""Composition of an algorithm with local differential privacy: clients clip what they upload and add noise to it.

The server's part is that of the algorithm alone. In a run with k groups of uploads, of both phases, the noise of a
group is z · √k times its bound, so that all that a client sends in a round has the noise z.
"""

from __future__ import annotations

import math
from functools import cache

from torch import Tensor

from ..algorithm import Algorithm, ClientContext, Gradient, Vectors
from ..core.composition import is_pair_of_dicts, recast, subclass
from .client_noise import NoisyAtClients
from .clipping import Clipped
from .local import Local
from .sums import PrivateSums, check_uploads, upload_groups


def with_local_privacy(algorithm: Algorithm, privacy: Local) -> Algorithm:
    """Return the algorithm with clipped and noisy uploads.

    The result has the class name and the fields of the algorithm.

    Args:
        algorithm: The algorithm, composed with local optimisers, not yet with codecs.
        privacy: The mechanism.

    Raises:
        ValueError: If clients upload nothing, or a bound is given for something that is not uploaded.
    """
    check_uploads(algorithm)
    sums = PrivateSums(upload_groups(algorithm, privacy), float(privacy.noise_multiplier), 1.0, 1, None)
    return recast(algorithm, _noisy_class(type(algorithm), sums))  # type: ignore[arg-type]  # a class is hashable


@cache
def _noisy_class(kind: type[Algorithm], sums: PrivateSums) -> type[Algorithm]:
    """Return a subclass of `kind` with this mechanism: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _NoisyUploads, _privacy_sums=sums, _privacy_base=kind)


class _NoisyUploads(Clipped, NoisyAtClients):
    """The methods in which an algorithm with noisy uploads differs from the algorithm alone."""

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        uploads = super().prepare(c, grad)
        return self._privacy_noisy("prepare", uploads, c) if isinstance(uploads, dict) else uploads

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        finished = super().finish(y, s, c, grad)
        if not is_pair_of_dicts(finished):
            return finished
        uploads, own = self._privacy_noisy("train", finished[0], c), finished[1]
        if self._privacy_base.delivered is Algorithm.delivered:
            return uploads, own
        return uploads, own | self.delivered(uploads, own, c)[1]  # the client's state follows what the server gets

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        delivered = super().delivered(upload, own, c)
        # Numbers stay as they are: computed again, they might tell more than the noisy ones.
        return (upload, delivered[1]) if is_pair_of_dicts(delivered) else delivered

    def _privacy_noisy(self, phase: str, uploads: Vectors, c: ClientContext) -> Vectors:
        """Return the uploads of each client with its noise."""
        groups, z = self._privacy_sums.groups, self._privacy_sums.noise_multiplier
        noisy = dict(uploads)
        if z == 0:
            return noisy
        for group, vectors in self._privacy_vectors(phase, uploads, c):
            for name, v in vectors.items():
                count = v.shape[c.K.ndim - 1 :].numel()
                noise = self._privacy_client_noise.normal(c.key, phase, name, count).view(v.shape)
                noisy[name] = v + (z * math.sqrt(len(groups)) * group.bound * noise).to(v)
        return noisy
