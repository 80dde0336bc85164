"""Run rnn-lower from a checkout."""

from rnn_lower.cli import main

if __name__ == "__main__":  # a process of --jobs imports this file
    raise SystemExit(main())
