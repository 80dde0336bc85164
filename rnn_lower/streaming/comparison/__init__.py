"""The streaming model in chunks against the original on whole sequences: by running both, and by proof."""
