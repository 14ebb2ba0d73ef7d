"""Digests of weights, for the fingerprint under which engines share blocks."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

WIDTH = 4096
"""Bytes in a row of `digest`."""
CHUNK = 16 << 20
"""Bytes that are summed at a time, because torch makes an integer of 8 bytes of each byte."""


def digest(parameter: torch.Tensor) -> bytes:
    """Return a digest of a parameter's bytes, laid out in rows: it hashes the sum of each row and
    of each column.

    A changed byte, or two bytes that change places, change a sum. The bytes that remain after the
    last row are hashed as they are. The digest does not depend on the device or the strides.
    """
    flat = parameter.detach().contiguous().view(-1)
    hashed = hashlib.sha256()
    data = flat.view(torch.uint8) if flat.numel() else flat
    for start in range(0, data.numel(), CHUNK):
        chunk = data[start : start + CHUNK]
        rows = chunk[: len(chunk) // WIDTH * WIDTH].view(-1, WIDTH).long()
        for part in (rows.sum(dim=0), rows.sum(dim=1), chunk[rows.numel() :]):
            hashed.update(part.cpu().numpy().tobytes())
    return hashed.digest()


def of_files(folder: Path, pattern: str) -> str:
    """Return a digest of names and contents of the files in `folder` that match the glob `pattern`.

    Raises `OSError` if a file cannot be read.
    """
    hashed = hashlib.sha256()
    for path in sorted(filter(Path.is_file, folder.glob(pattern))):
        with path.open("rb") as file:
            hashed.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return hashed.hexdigest()
