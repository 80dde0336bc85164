"""Check a lowered model by running it beside the original: samples, runners, comparison."""
