"""Arrays in .npz files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from rnn_lower.errors import RnnLowerError

LONGEST = 65_000
"""The most bytes of a name within a zip archive, without the extension."""


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. numpy itself takes the name 'x.npy' for that of the file which holds 'x'.

    Raises an error of any type for a file that is none.
    """
    with np.load(path, allow_pickle=False) as archive:
        return {member.removesuffix(".npy"): np.asarray(archive[member]) for member in archive.zip.namelist()}


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of any names as an .npz archive; `np.savez` does not accept the names of its own parameters."""
    if longest := max((name for name in arrays if len(name.encode("utf-8", "replace")) > LONGEST), key=len, default=""):
        raise RnnLowerError(f"the name '{longest[:50]}...' is too long for an .npz file; rename the node or value")
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(str) if array.dtype == object else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)
