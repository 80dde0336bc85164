"""Rebuild the models exported by PyTorch: python models/export_torch.py (needs torch and onnxscript)."""

from pathlib import Path

import onnx
import torch

HERE = Path(__file__).parent


def drop_stack_traces(path: Path) -> None:
    """They hold the paths of the machine that made the export."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


class Tagger(torch.nn.Module):
    """Two stacked bidirectional LSTM layers with packed lengths: X [T, N, 16] -> scores [T, N, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(16, 20, num_layers=2, bidirectional=True)
        self.out = torch.nn.Linear(40, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])
        return self.out(y)


class Streaming(torch.nn.Module):
    """A GRU that takes and gives its state: x [N, T, 12], h [1, N, 24] -> y, new h."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.GRU(12, 24, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rnn(x, h)


class Plain(torch.nn.Module):
    """A bidirectional tanh RNN: x [T, N, 8] -> last states [2, N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.RNN(8, 10, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[1]


class Classifier(torch.nn.Module):
    """A static LSTM for small devices: x [1, 10, 6] -> class scores [1, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(6, 16, batch_first=True)
        self.out = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def main() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([7, 4, 2])
    torch.onnx.export(
        Tagger().eval(), (torch.randn(7, 3, 16), lengths), HERE / "torch_lstm_tagger.onnx", dynamo=False,
        opset_version=13, input_names=["x", "lengths"], output_names=["scores"],
        dynamic_axes={"x": {0: "time", 1: "batch"}, "lengths": {0: "batch"}, "scores": {0: "time", 1: "batch"}},
    )  # fmt: skip
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        Streaming().eval(), (torch.randn(2, 5, 12), torch.zeros(1, 2, 24)), HERE / "torch_gru_streaming.onnx",
        dynamo=True, opset_version=18, external_data=False, input_names=["x", "h"], output_names=["y", "new_h"],
        dynamic_shapes={"x": {0: batch}, "h": {1: batch}},
    )  # fmt: skip
    drop_stack_traces(HERE / "torch_gru_streaming.onnx")
    torch.onnx.export(
        Plain().eval(), (torch.randn(6, 2, 8),), HERE / "torch_rnn_bidirectional.onnx", dynamo=False,
        opset_version=11, input_names=["x"], output_names=["states"],
        dynamic_axes={"x": {0: "time", 1: "batch"}, "states": {1: "batch"}},
    )  # fmt: skip
    torch.onnx.export(
        Classifier().eval(), (torch.randn(1, 10, 6),), HERE / "torch_lstm_classifier.onnx", dynamo=False,
        opset_version=17, input_names=["x"], output_names=["scores"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
