"""Run the command line as `python -m rnn_lower`."""

from rnn_lower.cli import main

raise SystemExit(main())
