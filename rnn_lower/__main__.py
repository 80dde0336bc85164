"""Run the command line as `python -m rnn_lower`."""

from rnn_lower.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
