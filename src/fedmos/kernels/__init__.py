"""Layers and Triton kernels for the convolutions, pooling and recurrence of a cohort, where PyTorch's are slow."""
