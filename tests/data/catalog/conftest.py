"""A hub that answers from memory."""

import pytest

from fedmos.data.catalog import hub


@pytest.fixture
def online(monkeypatch):
    """A hub that answers; what is asked of it."""
    asked = []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "check_reachable", lambda: None)

    def serve(answer):
        import datasets as library

        def load_dataset(*arguments):
            asked.append(arguments)
            return answer(library) if callable(answer) else answer

        monkeypatch.setattr(library, "load_dataset", load_dataset)
        return asked

    return serve
