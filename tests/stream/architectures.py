"""Small networks in the shapes of published ones, for torch to export: offline code, as it was trained.

Each is (module, input shape, axis of time, options of `stream`); T is 12 in the example of the export.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional as F

T = 12


class Causal(nn.Conv1d):
    """Padded in front by itself."""

    def __init__(self, channels: int, out: int, size: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, size, dilation=dilation, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class TCN(nn.Module):
    """Dilated convolutions padded on both sides, the end chomped off, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(6, 6, 3, dilation=d, padding=2 * d) for d in (1, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = x + F.relu(conv(x)[:, :, : -conv.padding[0]])
        return x


class Gated(nn.Module):
    """Gated convolutions: one padded stream, two halves of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.conv(F.pad(x, (2, 0))).chunk(2, dim=1)
        return a * torch.sigmoid(b)


class CRN(nn.Module):
    """Convolutions over time and frequency, a GRU, transposed convolutions with chomp, skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, (2, 3), stride=(1, 2), padding=(1, 0))
        self.norm = nn.BatchNorm2d(4)
        self.rnn = nn.LSTM(4 * 4, 16, batch_first=True)
        self.up = nn.ConvTranspose2d(8, 1, (2, 3), stride=(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, 9]
        a = F.elu(self.norm(self.down(x.unsqueeze(1))[:, :, :-1]))
        h, _ = self.rnn(a.permute(0, 2, 1, 3).flatten(2))
        h = h.reshape(h.shape[0], h.shape[1], 4, 4).permute(0, 2, 1, 3)
        return self.up(torch.cat([h, a], 1))[:, :, :-1].squeeze(1)


class DPCRN(nn.Module):
    """Dual path: a bidirectional GRU over frequency, a GRU over time, layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.intra, self.inter = nn.GRU(4, 2, batch_first=True, bidirectional=True), nn.GRU(4, 4, batch_first=True)
        self.one, self.other = nn.LayerNorm([8, 4]), nn.LayerNorm([8, 4])
        self.conv = nn.Conv2d(1, 4, (2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, 8]
        a = self.conv(F.pad(x.unsqueeze(1), (0, 0, 1, 0))).permute(0, 2, 3, 1)  # [B, T, 8, 4]
        b, t, f, c = a.shape
        h, _ = self.intra(a.reshape(b * t, f, c))
        a = a + self.one(h.reshape(b, t, f, c))
        h, _ = self.inter(a.permute(0, 2, 1, 3).reshape(b * f, t, c))
        return a + self.other(h.reshape(b, f, t, c).permute(0, 2, 1, 3))


class GTCRN(nn.Module):
    """Unfold over frequency, grouped bidirectional GRU over frequency, temporal attention by a GRU of the energy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, (3, 3), padding=(0, 1))
        self.energy, self.fc = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 4)
        self.intra = nn.GRU(4, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, 8]
        x = x.unsqueeze(1)
        x = F.unfold(x, (1, 3), padding=(0, 1)).reshape(x.shape[0], 3, -1, 8)
        x = self.conv(F.pad(x, (0, 0, 2, 0)))
        a, _ = self.energy(torch.mean(x.pow(2), -1).transpose(1, 2))
        x = x * torch.sigmoid(self.fc(a)).transpose(1, 2).unsqueeze(-1)
        b, c, t, f = x.shape
        h, _ = self.intra(x.permute(0, 2, 3, 1).reshape(b * t, f, c))
        return h.reshape(b, t, f, 4)


class ULUNAS(nn.Module):
    """Depthwise separable convolutions with PReLU and an attention over channels by a causal GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.depth = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, (2, 3), groups=4, padding=(0, 1), stride=(1, 2))
        self.act, self.gru, self.fc = nn.PReLU(4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, 8]
        x = self.act(self.point(x.unsqueeze(1)))
        x = self.depth(F.pad(x, (0, 0, 1, 0)))
        a, _ = self.gru(x.square().mean(3).transpose(1, 2))
        return x * torch.sigmoid(self.fc(a)).transpose(1, 2)[..., None]


class DeepFilterNetEncoder(nn.Module):
    """Two paths, a grouped linear layer as an Einsum, a GRU, and the local signal-to-noise ratio."""

    def __init__(self) -> None:
        super().__init__()
        self.erb, self.df = nn.Conv2d(1, 4, (3, 3), padding=(0, 1)), nn.Conv2d(2, 4, (3, 3), padding=(0, 1))
        self.weight = nn.Parameter(torch.randn(2, 16, 8) / 4)
        self.gru, self.lsnr = nn.GRU(16, 16, batch_first=True), nn.Sequential(nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, erb: torch.Tensor, spec: torch.Tensor) -> tuple[torch.Tensor, ...]:  # [B, 1, T, 4], [B, 2, T, 4]
        e = F.relu(self.erb(F.pad(erb, (0, 0, 2, 0))))
        c = F.relu(self.df(F.pad(spec, (0, 0, 2, 0))))
        both = torch.cat([e.permute(0, 2, 3, 1).flatten(2), c.permute(0, 2, 3, 1).flatten(2)], -1)
        groups = both.unflatten(-1, (2, 16))
        emb = torch.einsum("btgi,gih->btgh", groups, self.weight).flatten(2)
        h, _ = self.gru(emb)
        return h, e, self.lsnr(h) * 50 - 15


class DeepFilterNetErb(nn.Module):
    """The decoder: transposed convolutions over frequency, pathway convolutions added."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16)
        self.skip, self.up = nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 1, (1, 3), (1, 2), (0, 1), (0, 1), groups=1)

    def forward(self, emb: torch.Tensor, e: torch.Tensor) -> torch.Tensor:  # [B, T, 16], [B, 4, T, 4]
        h, _ = self.gru(emb)
        x = F.relu(self.fc(h)).unflatten(-1, (4, 4)).permute(0, 3, 1, 2)
        return torch.sigmoid(self.up(F.relu(self.skip(e)) + x))


class DeepFilterNetDf(nn.Module):
    """The coefficients of the filters of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.skip = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16, bias=False)
        self.conv, self.out = nn.Conv2d(4, 2, (5, 1)), nn.Linear(16, 8)

    def forward(self, emb: torch.Tensor, c0: torch.Tensor) -> torch.Tensor:  # [B, T, 16], [B, 4, T, 4]
        h, _ = self.gru(emb)
        c = torch.tanh(self.out(h + self.skip(emb)))
        p = self.conv(F.pad(c0, (0, 0, 4, 0))).permute(0, 2, 3, 1)
        return c.unflatten(-1, (4, 2)) + p


class PercepNet(nn.Module):
    """Convolutions that look ahead by a padding behind, GRUs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.conv = nn.Linear(6, 8), nn.Conv1d(8, 8, 5)
        self.gru, self.out = nn.GRU(8, 8, 2, batch_first=True), nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc(x)).transpose(1, 2)
        x = torch.tanh(self.conv(F.pad(x, (2, 2)))).transpose(1, 2)
        h, _ = self.gru(x)
        return torch.sigmoid(self.out(torch.cat([h, x], -1)))


class RNNoise(nn.Module):
    """Convolutions without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(6, 8, 3), nn.Conv1d(8, 8, 3)
        self.gru, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = torch.tanh(self.two(torch.tanh(self.one(x.transpose(1, 2))))).transpose(1, 2)
        h, _ = self.gru(c)
        return torch.sigmoid(self.out(torch.cat([c, h], -1)))


class FullSubNet(nn.Module):
    """A cumulative norm, an LSTM over all bands, and one over each band with its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.sub = nn.LSTM(6, 6, batch_first=True), nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 2)

    @staticmethod
    def norm(x: torch.Tensor) -> torch.Tensor:  # [B, F, T]
        total = torch.cumsum(x.mean(1, keepdim=True), -1)
        count = torch.cumsum(torch.ones_like(x[:, :1]), -1)
        return x / (total.abs() / count + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, 6, T]
        h, _ = self.full(self.norm(x).transpose(1, 2))
        h = h.transpose(1, 2)
        p = F.pad(x, (0, 0, 1, 1), mode="reflect")
        bands = torch.stack([p[:, k : k + 6] for k in range(3)] + [h], 2)  # [B, 6, 4, T]
        b, f, n, t = bands.shape
        y, _ = self.sub(bands.reshape(b * f, n, t).transpose(1, 2))
        return self.out(y).reshape(b, f, t, 2)


class FSMN(nn.Module):
    """A memory of past frames by a depthwise convolution, added to the projection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        self.memory = nn.Conv2d(6, 6, (4, 1), dilation=(2, 1), groups=6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.down(torch.relu(self.up(x)))
        u = p.unsqueeze(1).permute(0, 3, 2, 1)
        return x + (u + self.memory(F.pad(u, (0, 0, 6, 0)))).permute(0, 3, 2, 1).squeeze(1)


class IcefallLSTM(nn.Module):
    """Subsampling without padding, an LSTM with a projection and feed-forward layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 3, padding=(0, 1)), nn.Conv2d(4, 4, 3, stride=2)
        self.out, self.lstm = nn.Linear(12, 6), nn.LSTM(6, 8, batch_first=True)
        self.proj, self.ff = nn.Linear(8, 6), nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, 8]
        x = F.relu(self.two(F.relu(self.one(x.unsqueeze(1)))))
        b, c, t, f = x.shape
        x = self.out(x.transpose(1, 2).reshape(b, t, c * f))
        h, _ = self.lstm(x)
        x = x + self.proj(h)
        x = x + self.ff(x)
        return x * (x.pow(2).mean(-1, keepdim=True) + 1).pow(-0.5)


class DCCRN(nn.Module):
    """Complex convolutions and a complex LSTM: real and imaginary parts apart."""

    def __init__(self) -> None:
        super().__init__()
        self.re, self.im = nn.Conv2d(1, 2, (2, 3), padding=(0, 1)), nn.Conv2d(1, 2, (2, 3), padding=(0, 1))
        self.lstm_re, self.lstm_im = nn.LSTM(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, 2, T, 4]
        x = F.pad(x, (0, 0, 1, 0))
        re, im = torch.chunk(x, 2, 1)
        a, b = self.re(re) - self.im(im), self.re(im) + self.im(re)
        a, b = (one.transpose(1, 2).flatten(2) for one in (a, b))
        re = self.lstm_re(a)[0] - self.lstm_im(b)[0]
        im = self.lstm_re(b)[0] + self.lstm_im(a)[0]
        return torch.stack([re, im], 1)


class Demucs(nn.Module):
    """Strided convolutions over samples, an LSTM, transposed convolutions that overlap, the end cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.glu = Causal(1, 4, 4), nn.Conv1d(4, 8, 1)
        self.pool = nn.Conv1d(4, 4, 2, stride=2)
        self.lstm, self.up = nn.LSTM(4, 4, batch_first=True), nn.ConvTranspose1d(4, 1, 4, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, 1, T]
        skip = F.glu(self.glu(F.relu(self.down(x))), 1)
        h, _ = self.lstm(self.pool(skip).transpose(1, 2))
        return self.up(h.transpose(1, 2))[..., :-2] + skip.mean(1, keepdim=True)


class Policy(nn.Module):
    """A robot's: observations, an LSTM, actions with a bounded range."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.mlp = nn.LSTM(6, 8, batch_first=True), nn.Sequential(nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm(torch.clamp(x, -5, 5))
        return torch.tanh(self.mlp(h))


ARCHITECTURES: dict[str, tuple[type[nn.Module], list[list[int]], list[int], dict[str, Any]]] = {
    "TCN": (TCN, [[2, 6, T]], [2], {}),
    "gated convolutions": (Gated, [[2, 6, T]], [2], {}),
    "CRN": (CRN, [[2, T, 9]], [1], {}),
    "DPCRN": (DPCRN, [[2, T, 8]], [1], {}),
    "GTCRN": (GTCRN, [[2, T, 8]], [1], {}),
    "UL-UNAS": (ULUNAS, [[2, T, 8]], [1], {}),
    "DeepFilterNet encoder": (DeepFilterNetEncoder, [[2, 1, T, 4], [2, 2, T, 4]], [2, 2], {}),
    "DeepFilterNet ERB decoder": (DeepFilterNetErb, [[2, T, 16], [2, 4, T, 4]], [1, 2], {}),
    "DeepFilterNet DF decoder": (DeepFilterNetDf, [[2, T, 16], [2, 4, T, 4]], [1, 2], {}),
    "PercepNet": (PercepNet, [[2, T, 6]], [1], {"delay": True}),
    "RNNoise": (RNNoise, [[2, T, 6]], [1], {}),
    "FullSubNet": (FullSubNet, [[2, 6, T]], [2], {}),
    "FSMN": (FSMN, [[2, T, 6]], [1], {}),
    "icefall LSTM": (IcefallLSTM, [[2, T, 8]], [1], {}),
    "DCCRN": (DCCRN, [[2, 2, T, 4]], [2], {}),
    "Demucs": (Demucs, [[2, 1, T]], [2], {}),
    "policy": (Policy, [[2, T, 6]], [1], {}),
}


def exported(name: str, dynamo: bool, batch: bool = False) -> onnx.ModelProto:
    """As torch exports it, its time free; batch: the batch too."""
    make, shapes, axes, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    module, inputs = make().eval(), tuple(torch.rand(shape) * 2 - 1 for shape in shapes)
    names = [f"x{k}" for k in range(len(shapes))]
    free = [{axis: "T", **({0: "B"} if batch else {})} for axis in axes]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            dims = tuple(dict.fromkeys(one, torch.export.Dim.DYNAMIC) for one in free)
            program = torch.onnx.export(
                module, inputs, dynamo=True, dynamic_shapes=dims, input_names=names, verbose=False
            )
            return program.model_proto
        torch.onnx.export(
            module, inputs, file, dynamo=False, input_names=names, dynamic_axes=dict(zip(names, free, strict=True))
        )
    return onnx.load_from_string(file.getvalue())
