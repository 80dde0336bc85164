"""Run rnn-lower from a checkout."""

from rnn_lower.cli import main

raise SystemExit(main())
