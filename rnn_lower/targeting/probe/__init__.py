"""The conformance kit: models with inputs and expected results, and what a runtime made of them."""
