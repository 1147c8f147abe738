"""What is measured of a model: metrics, per-client evaluation, diagnostics, analysis."""
