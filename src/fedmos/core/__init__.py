"""Building blocks that know nothing of rounds: the flat model, losses, validation, formatting, history."""
