"""Arithmetic on flat arrays. `numpy_` is the reference that other kernels are compared with."""
