"""Export an LSTM from torch, lower it in place in torch's ONNXProgram, and run other tools before and after.

    python examples/export_torch.py [--out lowered.onnx]

Needs torch. Passes of onnx_ir and onnxscript's optimizer run around the lowering; so does onnxslim, if it is installed.
"""  # fmt: skip

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxscript.optimizer
import torch
from onnx_ir.passes import common

import rnn_lower


class Tagger(torch.nn.Module):
    """Scores of five classes for every step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0])


def exported() -> torch.onnx.ONNXProgram:
    program = torch.onnx.export(
        Tagger().eval(), (torch.zeros(2, 7, 16),), dynamo=True, verbose=False,
        dynamic_shapes={"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}},
    )  # fmt: skip
    assert program is not None
    return program


def operators(model: onnx.ModelProto) -> str:
    return f"{len(model.graph.node)} nodes, {', '.join(sorted({node.op_type for node in model.graph.node}))}"


def slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        import onnxslim
    except ImportError:
        print("onnxslim is not installed, and left out")
        return model
    return onnxslim.slim(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    program = exported()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in ("exported", "lowered", "passes", "around")}
        program.save(paths["exported"])
        print("exported:", operators(onnx.load(paths["exported"])))

        # In place, on the model of the program, which is then saved as usual.
        rnn_lower.lower(program)
        program.save(paths["lowered"])

        # As one of several passes.
        model = ir.load(paths["exported"])
        passes = ir.passes.Sequential(
            common.IdentityEliminationPass(), rnn_lower.LowerRecurrentPass(), common.RemoveUnusedNodesPass()
        )
        ir.save(passes(model).model, paths["passes"])

        # Optimized before lowering, and optimized and slimmed after it.
        model = ir.load(paths["exported"])
        onnxscript.optimizer.optimize(model)
        rnn_lower.lower(model)
        onnxscript.optimizer.optimize(model)
        onnx.save(slimmed(ir.to_proto(model)), paths["around"])

        for name in ("lowered", "passes", "around"):
            report = rnn_lower.check(paths["exported"], paths[name])
            print(f"{name}: {operators(onnx.load(paths[name]))}; {report.verdict}")
            assert report.ok
        if arguments.out:
            arguments.out.write_bytes(paths["lowered"].read_bytes())


if __name__ == "__main__":
    main()
