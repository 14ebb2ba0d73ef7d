"""Checks and measurements on a real NVIDIA GPU: ``make gpu-test`` and ``make gpu-bench``.

They need torch with CUDA, cuda-python and numpy, nothing else. Rows that need vLLM say so where
it is missing. With ``--dry``, everything that is not a kernel runs over the tests' stand-in for
NVIDIA's driver, small: that the rows work is tested where no GPU is.
"""
