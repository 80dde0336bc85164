from rnn_lower.cli import main

raise SystemExit(main())
