"""The conformance kit: models with inputs and expected outputs, and the results of a runtime for them."""
