"""Lower a model in an Olive workflow: Olive registers a surgeon when its class is defined.

    python examples/olive_lower.py models/torch_keyword_spotter.onnx --out lowered
"""  # fmt: skip

from __future__ import annotations

import argparse

import onnx_ir as ir
from olive import run
from olive.passes.onnx.graph_surgeries import Surgeon

import rnn_lower


class LowerRecurrent(Surgeon):
    """The surgeon {"surgeon": "LowerRecurrent"}, with the options of `rnn_lower.lower` that a workflow needs."""

    def __init__(self, form: str = "auto", target: str | None = None) -> None:
        super().__init__()
        self.form, self.target = form, target

    def call_ir(self, model: ir.Model) -> ir.Model:
        return rnn_lower.lower(model, form=self.form, target=self.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", default="lowered", help="a folder")
    arguments = parser.parse_args()
    surgeries = [{"surgeon": "LowerRecurrent", "form": "scan"}]
    run(
        {
            "input_model": {"type": "ONNXModel", "model_path": arguments.model},
            "passes": {"lower": {"type": "GraphSurgeries", "surgeries": surgeries}},
            "output_dir": arguments.out,
        }
    )


if __name__ == "__main__":
    main()
