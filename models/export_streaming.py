"""Rebuild the models that are to be streamed: python models/export_streaming.py (needs torch and onnxscript)."""

from pathlib import Path

import torch
from export_torch import drop_stack_traces

HERE = Path(__file__).parent


class Denoiser(torch.nn.Module):
    """Two causal convolutions and a GRU that weigh the bands of noisy spectra: x [N, T, 16] -> [N, T, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(16, 12, 3)
        self.second = torch.nn.Conv1d(12, 12, 3, dilation=2)
        self.rnn = torch.nn.GRU(12, 12, batch_first=True)
        self.mask = torch.nn.Linear(12, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pad = torch.nn.functional.pad
        y = torch.relu(self.first(pad(x.transpose(1, 2), (2, 0))))
        y = torch.relu(self.second(pad(y, (4, 0))))
        return x * torch.sigmoid(self.mask(self.rnn(y.transpose(1, 2))[0]))


class Spotter(torch.nn.Module):
    """A CRNN for keywords: x [N, T, 20] -> scores [N, T, 4].

    Convolution over time and bands, a bidirectional GRU over the bands of each frame, a GRU over time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 6, (3, 3), stride=(1, 2), padding=(0, 1))
        self.norm = torch.nn.BatchNorm2d(6)
        self.bands = torch.nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.time = torch.nn.GRU(80, 12, batch_first=True)
        self.out = torch.nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t = x.shape[0], x.shape[1]
        y = torch.nn.functional.pad(x[:, None], (0, 0, 2, 0))
        y = torch.relu(self.norm(self.conv(y)))  # [N, 6, T, 10]
        y = y.permute(0, 2, 3, 1).reshape(n * t, 10, 6)
        y = self.bands(y)[0].reshape(n, t, 80)
        return self.out(self.time(y)[0]).log_softmax(-1)


class Writer(torch.nn.Module):
    """A language model of two LSTM layers: tokens [N, T] -> scores [N, T, 30]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(30, 12)
        self.rnn = torch.nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.out = torch.nn.Linear(16, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(self.table(tokens))[0])


def main() -> None:
    torch.manual_seed(0)
    axes = {0: "batch", 1: "time"}
    spotter = Spotter()
    spotter(torch.randn(8, 50, 20))  # gives BatchNorm statistics of its own
    torch.onnx.export(
        Denoiser().eval(), (torch.randn(2, 9, 16),), HERE / "torch_denoiser.onnx", dynamo=False, opset_version=13,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": axes, "y": axes},
    )  # fmt: skip
    torch.onnx.export(
        spotter.eval(), (torch.randn(2, 9, 20),), HERE / "torch_keyword_spotter.onnx", dynamo=False, opset_version=17,
        input_names=["x"], output_names=["scores"], dynamic_axes={"x": axes, "scores": axes},
    )  # fmt: skip
    torch.onnx.export(
        Writer().eval(), (torch.randint(0, 30, (2, 9)),), HERE / "torch_language_model.onnx", dynamo=True,
        opset_version=18, external_data=False, input_names=["x"], output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},),
    )  # fmt: skip
    drop_stack_traces(HERE / "torch_language_model.onnx")


if __name__ == "__main__":
    main()
