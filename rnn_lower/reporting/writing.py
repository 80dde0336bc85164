"""A text becomes a file by one rename, or goes where it is sent."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

from rnn_lower.errors import RnnLowerError
from rnn_lower.model import files


def write_text(text: str, destination: str | os.PathLike[str], force: bool = False) -> None:
    """Whole or not at all; "-" is the standard output, a device or FIFO is written to, a link is followed.

    Raises RnnLowerError when it cannot be written there.
    """
    told, path = os.fspath(destination), Path(os.path.realpath(destination))
    if told == "-":
        sys.stdout.write(text)
        return
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        if path.is_dir():
            raise RnnLowerError(f"{told}: cannot be written: it is a folder")
        if path.is_file() and not os.stat(path).st_mode & stat.S_IWUSR and not force:
            raise RnnLowerError(f"{told}: cannot be written: it is read-only; --force replaces it all the same")
        made = files.Staged(path, path.parent, secrets.token_hex(8))
        try:
            file = made.open(made.path)
            file.write(text.encode("utf-8"))
            files.sync(file)
            made.commit()
        finally:
            made.close()
    except OSError as error:
        raise RnnLowerError(f"{told}: cannot be written: {error.strerror or error}") from None
