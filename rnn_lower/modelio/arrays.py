"""Arrays in .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays of any names as an .npz archive; `np.savez` does not accept the names of its own parameters."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(str) if array.dtype == object else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)
