"""Kernels of our own, where a library has none that suits a cohort."""
