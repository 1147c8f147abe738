"""Layers and Triton kernels for convolution, pooling, attention and recurrence of a cohort, where PyTorch is slow."""
