"""Uploads of private runs at the server, which does not trust clients to clip them."""

from __future__ import annotations

from ..algorithm import Algorithm
from ..codecs.compose import coding_of
from ..engine.secure_sums import secure_rule
from ..privacy.compose import clip_decoded, exceeded_bound, is_private
from . import wire
from .requests import Reply, Request


class UploadClipping:
    """Holds the uploads of clients to the bounds of privacy.

    Args:
        algorithm: The algorithm of the run, private or not.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.private = is_private(algorithm)
        """Whether the run is private."""
        self._algorithm, self._coded = algorithm, bool(coding_of(algorithm).up)
        self._visible = secure_rule(algorithm) is None  # else the server cannot tell the norm of an upload

    def applied(self, request: Request, reply: Reply) -> Reply:
        """Return a reply whose uploads are within their bounds. Clients have clipped them, unless they are encoded.

        Raises:
            wire.RefusedError: If they are not.
        """
        if not self.private or not self._visible or request.phase is None:
            return reply
        if self._coded:
            return reply._replace(
                vectors=clip_decoded(self._algorithm, request.phase, dict(reply.vectors), request.msg)
            )
        exceeded = exceeded_bound(self._algorithm, request.phase, dict(reply.vectors), request.msg)
        if exceeded is not None:
            norm, bound = exceeded
            raise wire.RefusedError(f"its uploads have a norm of {norm:.6g}, over the bound of privacy, {bound:.6g}")
        return reply
