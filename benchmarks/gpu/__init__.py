"""Checks and measurements on a real NVIDIA GPU: ``make gpu-test`` and ``make gpu-bench``.

They need torch with CUDA, cuda-python and numpy. Rows that need vLLM are skipped with the reason
where it is missing. With ``--dry`` everything except kernels runs in a small size over the tests'
stand-in for NVIDIA's driver, so that rows are tested where no GPU is.
"""
