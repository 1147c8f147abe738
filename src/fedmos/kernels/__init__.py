"""Layers and Triton kernels for the convolutions and pooling of a cohort, where PyTorch's are slow."""
