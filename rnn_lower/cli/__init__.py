"""The command line: parser, commands and printing."""

from rnn_lower.cli.arguments import BAD, DIFFERENT, DONE, UNFORESEEN
from rnn_lower.cli.entry import main

__all__ = ["BAD", "DIFFERENT", "DONE", "UNFORESEEN", "main"]
