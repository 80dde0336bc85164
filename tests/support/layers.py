"""Random stacks of layers over [N, T, F]: models to be streamed, some of which look ahead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 6


class Stack:
    """Builds a model layer by layer.

    every: frames of the input that make one here.  causal: none looks ahead.  ahead: so many frames come late.
    cut: some of them because of padding behind the stream, or frames that are cut off.
    """

    def __init__(self, rng: np.random.Generator, opset: int = 17) -> None:
        self.rng, self.opset = rng, opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.value, self.every, self.causal, self.told = "x", 1, True, []
        self.ahead, self.cut = 0, False

    def const(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.uniform(-0.5, 0.5, shape).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.const(np.array(numbers, np.int64))

    def add(self, op: str, *inputs: str, count: int = 1, **attributes: object) -> str:
        names = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}{len(self.nodes)}", **attributes))
        self.value = names[0]
        return names[0]

    def model(self) -> onnx.ModelProto:
        last = self.add("Identity", self.value)
        self.nodes[-1].output[0] = "y"
        del last
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", FEATURES])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
        graph = helper.make_graph(self.nodes, "stack", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def dense(s: Stack) -> None:
    s.add("MatMul", s.value, s.weight(FEATURES, FEATURES))
    s.add("Add", s.value, s.weight(FEATURES))


def gated(s: Stack) -> None:
    before = s.value
    gate = s.add("Sigmoid", s.add("MatMul", before, s.weight(FEATURES, FEATURES)))
    s.add("Mul", before, gate)


def softmax(s: Stack) -> None:
    s.add("Softmax", s.value, axis=-1)


def norm(s: Stack) -> None:
    s.add("LayerNormalization", s.value, s.weight(FEATURES), s.weight(FEATURES), axis=-1)


def _as_channels(s: Stack) -> None:
    s.add("Transpose", s.value, perm=[0, 2, 1])


def conv(s: Stack) -> None:
    """Causal, padded by itself or by a Pad, dilated, strided."""
    k, d, stride = (int(s.rng.integers(1, n)) for n in (5, 4, 3))
    reach = (k - 1) * d + 1
    stride = min(stride, reach) if s.ahead else stride
    left = int(s.rng.integers(max(reach - stride, 0), reach))
    _as_channels(s)
    own = left if s.rng.integers(2) or s.ahead else 0
    if not own and left:
        s.add("Pad", s.value, s.ints(0, 0, left, 0, 0, 0), s.const(np.array(float(s.rng.integers(2)), np.float32)))
        if s.rng.integers(2):
            s.add("Tanh", s.value)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), s.weight(FEATURES), kernel_shape=[k], dilations=[d],
          strides=[stride], pads=[own, 0])  # fmt: skip
    _as_channels(s)
    s.every *= stride


def conv2d(s: Stack) -> None:
    """Over time and features, time first."""
    s.add("Unsqueeze", s.value, s.ints(1))
    s.add("Conv", s.value, s.weight(2, 1, 3, 3), kernel_shape=[3, 3], pads=[2, 1, 0, 1])
    s.add("BatchNormalization", s.value, s.weight(2), s.weight(2), s.weight(2), s.const(np.ones(2, np.float32)))
    s.add("Conv", s.value, s.weight(1, 2, 1, 1), kernel_shape=[1, 1])
    s.add("Squeeze", s.value, s.ints(1))


def pool(s: Stack) -> None:
    k = int(s.rng.integers(2, 4))
    stride = int(s.rng.integers(1, k + 1))
    left = int(s.rng.integers(max(k - stride, 0), k))
    _as_channels(s)
    op, more = [("MaxPool", {}), ("AveragePool", {"count_include_pad": 1})][int(s.rng.integers(2))]
    s.add(op, s.value, kernel_shape=[k], strides=[stride], pads=[left, 0], **more)
    _as_channels(s)
    s.every *= stride


def residual(s: Stack) -> None:
    before = s.value
    inner = [dense, causal_conv, lstm][int(s.rng.integers(3))]
    inner(s)
    s.add("Add", s.value, before)


def causal_conv(s: Stack) -> None:
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, 1, 3), kernel_shape=[3], pads=[2, 0], group=FEATURES)
    _as_channels(s)


def lstm(s: Stack) -> None:
    """Over time, time first, its initial state computed from the batch as exporters do."""
    s.add("Transpose", s.value, perm=[1, 0, 2])
    x = s.value
    state = ""
    if s.rng.integers(2):
        rows = s.add("Gather", s.add("Shape", x), s.ints(1), axis=0)
        size = s.add("Concat", s.ints(1), rows, s.ints(FEATURES), axis=0)
        state = s.add("Expand", s.weight(1, 1, FEATURES), size)
    s.add("LSTM", x, s.weight(1, 4 * FEATURES, FEATURES), s.weight(1, 4 * FEATURES, FEATURES), "", "", state, "",
          hidden_size=FEATURES)  # fmt: skip
    s.add("Squeeze", s.value, s.ints(1))
    s.add("Transpose", s.value, perm=[1, 0, 2])


def over_features(s: Stack) -> None:
    """A bidirectional GRU over the features, the frames in the batch."""
    s.add("Reshape", s.value, s.ints(-1, FEATURES, 1))
    s.add("Transpose", s.value, perm=[1, 0, 2])
    s.add("GRU", s.value, s.weight(2, 6, 1), s.weight(2, 6, 2), hidden_size=2, direction="bidirectional")
    s.add("Transpose", s.value, perm=[2, 0, 1, 3])
    s.add("Reshape", s.value, s.ints(0, 4 * FEATURES))
    s.add("MatMul", s.value, s.weight(4 * FEATURES, FEATURES))
    count = s.add("Gather", s.add("Shape", "x"), s.ints(0), axis=0)
    y = s.nodes[-3].output[0]
    s.add("Reshape", y, s.add("Concat", count, s.ints(-1, FEATURES), axis=0))


def embed(s: Stack) -> None:
    s.add("ArgMax", s.value, axis=-1, keepdims=0)
    s.add("Gather", s.weight(FEATURES, FEATURES), s.value)


def dual_path(s: Stack) -> None:
    """A GRU over time with the features in the batch."""
    s.add("Transpose", s.value, perm=[1, 0, 2])
    s.add("Reshape", s.value, s.const(np.array([0, -1, 1], np.int64)))
    s.add("GRU", s.value, s.weight(1, 3, 1), s.weight(1, 3, 1), hidden_size=1)
    s.add("Reshape", s.value, s.const(np.array([0, -1, FEATURES], np.int64)))
    s.add("Transpose", s.value, perm=[1, 0, 2])


def grouped(s: Stack) -> None:
    """A linear layer of each group of features, as an Einsum."""
    count = s.add("Gather", s.add("Shape", "x"), s.ints(0), axis=0)
    before = s.nodes[-3].output[0] if len(s.nodes) > 2 else "x"
    s.add("Reshape", before, s.add("Concat", count, s.ints(-1, 2, FEATURES // 2), axis=0))
    s.add("Einsum", s.value, s.weight(2, FEATURES // 2, FEATURES // 2), equation="btgi,gih->btgh")
    s.add("Reshape", s.value, s.ints(0, 0, FEATURES))


def running_sum(s: Stack) -> None:
    """With or without the frame itself."""
    s.add("Mul", s.value, s.const(np.array(0.1, np.float32)))
    s.add("CumSum", s.value, s.const(np.array(int(s.rng.choice([1, -2])), np.int64)), exclusive=int(s.rng.integers(2)))
    s.add("Tanh", s.value)


def conditioned(s: Stack) -> None:
    """One row for all frames, repeated as often as there are frames."""
    if s.ahead or s.cut:
        return
    before = s.value
    count = s.add("Slice", s.add("Shape", before), s.ints(1), s.ints(2))
    rows = s.add("Tile", s.weight(1, 1, 2), s.add("Concat", s.ints(1), count, s.ints(FEATURES // 2), axis=0))
    s.add("Add", before, rows)


def resized(s: Stack) -> None:
    """Twice the features."""
    if s.ahead or s.cut:  # a chunk may have none
        return
    s.add("Resize", s.value, "", s.const(np.array([1, 1, 2], np.float32)), mode="linear")
    s.add("MatMul", s.value, s.weight(2 * FEATURES, FEATURES))


def chomped(s: Stack) -> None:
    """Padded on both sides by the convolution or by a Pad, perhaps a function of it, then the end is cut off."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    k, d = int(s.rng.integers(2, 4)), int(s.rng.integers(1, 3))
    pad = (k - 1) * d
    _as_channels(s)
    own = bool(s.rng.integers(2))
    if not own:
        s.add("Pad", s.value, s.ints(0, 0, pad, 0, 0, pad))
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k], dilations=[d], pads=[pad * own] * 2)
    if s.rng.integers(2):
        s.add("Relu", s.value)
    s.add("Slice", s.value, s.ints(0), s.ints(-pad), s.ints(2))
    _as_channels(s)


def shifted(s: Stack) -> None:
    """The frame before is added."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    before, k = s.value, int(s.rng.integers(1, 3))
    if s.rng.integers(2):
        s.add("Pad", before, s.ints(0, k, 0, 0, -k, 0), s.const(np.array(0.5, np.float32)))
    else:
        s.add("Slice", s.add("Pad", before, s.ints(0, k, 0, 0, 0, 0)), s.ints(0), s.ints(-k), s.ints(1))
    s.add("Add", before, s.value)


def memory(s: Stack) -> None:
    """Two convolutions over cuts of one padded stream, as an FSMN has it."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    _as_channels(s)
    padded = s.add("Pad", s.value, s.ints(0, 0, 4, 0, 0, 0))
    first = s.add("Slice", padded, s.ints(0), s.ints(-2), s.ints(2))
    left = s.add("Conv", first, s.weight(FEATURES, 1, 3), kernel_shape=[3], group=FEATURES)
    middle = s.add("Slice", padded, s.ints(2), s.ints(-2), s.ints(2))
    last = s.add("Slice", padded, s.ints(3, 0), s.ints(2**62, FEATURES), s.ints(2, 1))
    right = s.add("Conv", last, s.weight(FEATURES, 1, 2), kernel_shape=[2], group=FEATURES)
    s.add("Add", s.add("Add", left, middle), right)
    _as_channels(s)


def joined(s: Stack) -> None:
    """A constant in front of the stream by Concat, for all rows."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    _as_channels(s)
    x = s.value
    rows = s.add("Slice", s.add("Shape", x), s.ints(0), s.ints(1))
    front = s.add("Expand", s.weight(1, FEATURES, 2), s.add("Concat", rows, s.ints(FEATURES, 2), axis=0))
    s.add("Concat", front, x, axis=2)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, 3), kernel_shape=[3])
    _as_channels(s)


def halved(s: Stack) -> None:
    """Padded in front, then two halves of the channels, each with its convolution."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    _as_channels(s)
    half = FEATURES // 2
    s.add("Pad", s.value, s.ints(0, 0, 2, 0, 0, 0))
    s.add("Split", s.value, s.ints(half, half), axis=1, count=2)
    parts = list(s.nodes[-1].output)
    made = [s.add("Conv", part, s.weight(FEATURES, half, 3), kernel_shape=[3]) for part in parts]
    s.add("Mul", made[0], s.add("Sigmoid", made[1]))
    _as_channels(s)


def transposed(s: Stack) -> None:
    """ConvTranspose of stride 1, padded in front, or cut off behind."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    k, d = int(s.rng.integers(2, 4)), int(s.rng.integers(1, 3))
    reach, padded = (k - 1) * d, bool(s.rng.integers(2))
    _as_channels(s)
    if padded:
        s.add("Pad", s.value, s.ints(0, 0, reach, 0, 0, 0))
    s.add("ConvTranspose", s.value, s.weight(FEATURES, FEATURES, k), s.weight(FEATURES), kernel_shape=[k],
          dilations=[d], pads=[reach * padded] * 2)  # fmt: skip
    if not padded:
        s.add("Slice", s.value, s.ints(0), s.ints(-reach), s.ints(2))
    _as_channels(s)


def padded_behind(s: Stack) -> None:
    """By a Pad, which a convolution then looks ahead over."""
    k = int(s.rng.integers(2, 5))
    _as_channels(s)
    s.add("Pad", s.value, s.ints(0, 0, 0, 0, 0, k - 1))
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k])
    _as_channels(s)
    s.ahead, s.cut = s.ahead + s.every * (k - 1), True


def windows_ahead(s: Stack) -> None:
    """Slices of one padded stream side by side, some of which begin later than it, as deep filtering has them."""
    if s.ahead or s.cut:  # no padding in front of what comes late
        return
    before, ahead = int(s.rng.integers(3)), int(s.rng.integers(1, 3))
    padded, count = s.add("Pad", s.value, s.ints(0, before, 0, 0, ahead, 0)), before + ahead
    ends = [k - count or 2**62 for k in range(count + 1)]
    parts = [s.add("Slice", padded, s.ints(k), s.ints(end), s.ints(1)) for k, end in enumerate(ends)]
    s.add("MatMul", s.add("Concat", *parts, axis=2), s.weight((count + 1) * FEATURES, FEATURES))
    s.ahead, s.cut = s.every * ahead, True


def repeated(s: Stack) -> None:
    """Each frame several times, by scales or by sizes, and then as many as before."""
    if s.ahead or s.cut:
        return
    k, x = int(s.rng.integers(2, 5)), s.value
    modes = [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("pytorch_half_pixel", "round_prefer_ceil")]
    mode, rounding = modes[int(s.rng.integers(3))]
    sizes = [s.const(np.array([1, k, 1], np.float32))]
    if s.rng.integers(2):
        shape = s.add("Shape", x)
        rows = s.add("Slice", shape, s.ints(0), s.ints(1))
        sizes = ["", s.add("Concat", rows, s.add("Mul", _frames(s, x), s.ints(k)), s.ints(FEATURES), axis=0)]
    s.add("Resize", x, "", *sizes, coordinate_transformation_mode=mode, nearest_mode=rounding)
    s.add("Slice", s.value, s.ints(int(s.rng.integers(k))), s.ints(2**62), s.ints(1), s.ints(k))


def stacked_frames(s: Stack) -> None:
    """Two frames become one."""
    if s.ahead or s.cut:  # perhaps an odd number of them
        return
    count = s.add("Gather", s.add("Shape", "x"), s.ints(0), axis=0)
    before = s.nodes[-3].output[0] if len(s.nodes) > 2 else "x"
    s.add("Reshape", before, s.add("Concat", count, s.ints(-1, 2 * FEATURES), axis=0))
    s.add("MatMul", s.value, s.weight(2 * FEATURES, FEATURES))
    s.every *= 2


def late_conv(s: Stack) -> None:
    """With too little padding in front, or none, and perhaps some behind."""
    k, d = (int(s.rng.integers(1, n)) for n in (5, 4))
    reach = (k - 1) * d + 1
    stride = int(s.rng.integers(1, min(reach, 3) + 1))
    left, right = int(s.rng.integers(reach)), int(s.rng.integers(reach)) if s.rng.integers(2) else 0
    _as_channels(s)
    if s.rng.integers(2):
        s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), s.weight(FEATURES), kernel_shape=[k], dilations=[d],
              strides=[stride], pads=[left, right])  # fmt: skip
    else:
        left, right, reach = min(left, k - 1), min(right, k - 1), k
        stride = min(stride, k)
        s.add("MaxPool", s.value, kernel_shape=[k], strides=[stride], pads=[left, right])
    _as_channels(s)
    s.ahead += s.every * (reach - 1 - left)
    s.every *= stride
    s.cut |= right > 0


def centred(s: Stack) -> None:
    """A convolution of the same length, added to what went in."""
    before, k = s.value, 2 * int(s.rng.integers(1, 3)) + 1
    more: dict[str, object] = {"auto_pad": "SAME_UPPER"} if s.rng.integers(2) else {"pads": [k // 2, k // 2]}
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k], **more)
    _as_channels(s)
    s.add(*(("Add", s.value, before) if s.rng.integers(2) else ("Add", before, s.value)))
    s.ahead, s.cut = s.ahead + s.every * (k // 2), True


def cut_off(s: Stack) -> None:
    """An unpadded convolution, added to the frames in the middle of what went in."""
    before, first = s.value, int(s.rng.integers(3))
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, 1, 3), kernel_shape=[3], group=FEATURES)
    _as_channels(s)
    after = s.value
    s.add("Slice", before, s.ints(first), s.ints(first - 2 or 2**62), s.ints(1))
    s.add("Add", s.value, after)
    s.ahead, s.cut = s.ahead + 2 * s.every, True


def upsampled(s: Stack) -> None:
    """Twice as many frames by an overlapping ConvTranspose, the end cut off, and half of them again."""
    if s.ahead or s.cut:
        return
    k = int(s.rng.integers(2, 6))
    _as_channels(s)
    s.add("ConvTranspose", s.value, s.weight(FEATURES, FEATURES, k), s.weight(FEATURES), kernel_shape=[k], strides=[2])
    if k > 2:
        s.add("Slice", s.value, s.ints(0), s.ints(2 - k), s.ints(2))
    if s.rng.integers(2):
        s.add("Tanh", s.value)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, 2), kernel_shape=[2], strides=[2])
    _as_channels(s)


def thinned(s: Stack) -> None:
    """Every second frame."""
    if s.ahead or s.cut:
        return
    s.add("Slice", s.value, s.ints(int(s.rng.integers(2))), s.ints(2**62), s.ints(1), s.ints(2))
    s.every *= 2


def _frames(s: Stack, value: str) -> str:
    return s.add("Slice", s.add("Shape", value), s.ints(1), s.ints(2))


def counted(s: Stack) -> None:
    """A sine of the number of each frame is added."""
    if s.ahead or s.cut:
        return
    before = s.value
    frames = s.add("Squeeze", _frames(s, before), s.ints(0))
    numbers = s.add("Cast", s.add("Range", s.const(np.array(0)), frames, s.const(np.array(1))), to=1)
    angles = s.add("Mul", s.add("Unsqueeze", numbers, s.ints(1)), s.weight(FEATURES))
    s.add("Add", before, s.add("Sin", angles))


def encoded(s: Stack) -> None:
    """The first rows of a table are added."""
    if s.ahead or s.cut:
        return
    before = s.value
    rows = s.add("Slice", s.weight(400, FEATURES), s.ints(0), _frames(s, before), s.ints(0))
    s.add("Add", before, rows)


def cut_to_length(s: Stack) -> None:
    """A convolution padded on both sides, cut to the length of what went in, or by as much as was padded."""
    if s.ahead or s.cut:
        return
    k, before = int(s.rng.integers(2, 5)), s.value
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k], pads=[k - 1, k - 1])
    _as_channels(s)
    whole = s.value
    more = s.ints(k - 1)
    end = _frames(s, before) if s.rng.integers(2) else s.add("Sub", _frames(s, whole), more)
    s.add("Slice", whole, s.ints(0), end, s.ints(1))


def windows_by_offset(s: Stack) -> None:
    """The frames before each frame, as slices that start with their number in what is padded in front."""
    if s.ahead or s.cut:
        return
    k, before = int(s.rng.integers(2, 4)), s.value
    frames = _frames(s, before)
    padded = s.add("Pad", before, s.ints(0, k, 0, 0, 0, 0))
    parts = [s.add("Slice", padded, s.ints(n), s.add("Add", frames, s.ints(n)), s.ints(1)) for n in range(k + 1)]
    s.add("Sum", *(s.add("Mul", part, s.weight(FEATURES)) for part in parts))


def _windows(s: Stack, padded: str, count: str, k: int, frames: str) -> None:
    """A sum of the frames of each window, which a Gather selects by their indices, with a weight for each."""
    ones = s.const(np.array(0)), s.add("Squeeze", frames, s.ints(0)), s.const(np.array(1))
    last = bool(s.rng.integers(2))
    indices = s.add("Unsqueeze", s.add("Range", *ones), s.ints(1 if last else 0))
    offsets = np.arange(k).reshape((1, k) if last else (k, 1))
    windows = s.add("Gather", padded, s.add("Add", indices, s.const(offsets)), axis=1)
    s.add("Mul", windows, s.weight(*((k, FEATURES) if last else (k, 1, FEATURES))))
    if count:  # as exporters have it, beside the features
        side_by_side = s.add("Transpose", s.value, perm=[0, 1, 2, 3] if last else [0, 2, 1, 3])
        s.add("Reshape", side_by_side, s.add("Concat", s.ints(0), count, s.ints(k * FEATURES), axis=0))
        s.add("MatMul", s.value, s.weight(k * FEATURES, FEATURES))
    else:
        s.add("ReduceSum", s.value, s.ints(2 if last else 1), keepdims=0)


def windows_by_index(s: Stack) -> None:
    """The frames before each frame, gathered by their indices from what is padded in front, as Unfold has it."""
    k, before = int(s.rng.integers(1, 5)), s.value
    front = k - 1 + int(s.rng.integers(2))
    padded = s.add("Pad", before, s.ints(0, front, 0, 0, 0, 0))
    frames = _frames(s, before) if s.cut or s.rng.integers(2) else s.add("Sub", _frames(s, padded), s.ints(front))
    _windows(s, padded, frames if s.rng.integers(2) and not s.ahead else "", k, frames)


def late_windows(s: Stack) -> None:
    """Windows that are not padded, or behind, too; perhaps as Slices; added to what went in where they are as many."""
    k, before, frames = int(s.rng.integers(2, 5)), s.value, _frames(s, s.value)
    if not s.cut and s.rng.integers(3) == 0:
        _windows(s, before, "", k, s.add("Sub", frames, s.ints(k - 1)))
        s.ahead += s.every * (k - 1)
        return
    behind = int(s.rng.integers(1, k))
    if s.ahead or s.rng.integers(2):
        padded = s.add("Pad", before, s.ints(0, k - 1 - behind, 0, 0, behind, 0))
        _windows(s, padded, frames if s.rng.integers(2) and not s.ahead else "", k, frames)
    else:
        padded = s.add("Pad", before, s.ints(0, k - 1 - behind, 0, 0, behind, 0))
        ends = [s.ints(n - k + 1 or 2**62) if s.rng.integers(2) else s.add("Add", frames, s.ints(n)) for n in range(k)]
        parts = [s.add("Slice", padded, s.ints(n), end, s.ints(1)) for n, end in enumerate(ends)]
        s.add("Sum", *(s.add("Mul", part, s.weight(FEATURES)) for part in parts))
    s.add("Add", s.value, before)
    s.ahead, s.cut = s.ahead + s.every * behind, True


def mean_so_far(s: Stack) -> None:
    """A sum over all frames so far, divided by how many elements these have, as a Range counts them."""
    if s.ahead or s.cut:
        return
    before, step, floats = s.value, int(s.rng.integers(1, 4)), bool(s.rng.integers(2))
    frames = s.add("Squeeze", _frames(s, before), s.ints(0))
    limit = s.add("Mul", s.add("Add", frames, s.const(np.array(1))), s.const(np.array(step)))
    first = s.const(np.array(step, np.float32 if floats else np.int64))
    limit = s.add("Cast", limit, to=1) if floats else limit
    count = s.add("Range", first, limit, first)
    count = count if floats else s.add("Cast", count, to=1)
    s.add("Div", s.add("CumSum", before, s.ints(1)), s.add("Unsqueeze", count, s.ints(1)))


def shifted_by_a_join(s: Stack) -> None:
    """Zeros of the shape of the first frame joined in front of all frames but the last."""
    if s.ahead or s.cut:
        return
    before = s.value
    first = s.add("Slice", before, s.ints(0), s.ints(1), s.ints(1))
    zeros = s.add("ConstantOfShape", s.add("Shape", first))
    s.add("Concat", zeros, s.add("Slice", before, s.ints(0), s.ints(-1), s.ints(1)), axis=1)


def differences(s: Stack) -> None:
    """Each frame less a part of the one before it, with the first frame, zeros or padding in front."""
    if s.ahead or s.cut:
        return
    whole, axis = s.value, s.ints(1)
    first = s.add("Slice", whole, s.ints(0), s.ints(1), axis)
    later = s.add("Slice", whole, s.ints(1), s.ints(2**31), axis)
    before = s.add("Slice", whole, s.ints(0), s.ints(-1), axis)
    changed = s.add("Sub", later, s.add("Mul", before, s.const(np.array(0.5, np.float32))))
    kind = int(s.rng.integers(4))
    if kind == 0:
        s.add("Concat", first, changed, axis=1)
    elif kind == 1:
        s.add("Concat", s.add("ConstantOfShape", s.add("Shape", first)), changed, axis=1)
    elif kind == 2:
        s.add("Pad", changed, s.ints(0, 1, 0, 0, 0, 0))
    else:
        s.add("Concat", s.add("Tanh", first), changed, axis=1)


def from_the_first(s: Stack) -> None:
    """The first frame is subtracted from all, or repeated in front of all but the last."""
    if s.ahead or s.cut:
        return
    whole, axis = s.value, s.ints(1)
    kind = int(s.rng.integers(3))
    if kind == 0:
        s.add("Sub", whole, s.add("Slice", whole, s.ints(0), s.ints(1), axis))
    elif kind == 1:
        s.add("Sub", whole, s.add("Unsqueeze", s.add("Gather", whole, s.const(np.array(0)), axis=1), axis))
    else:
        first = s.add("Slice", whole, s.ints(0), s.ints(1), axis)
        s.add("Concat", first, s.add("Slice", whole, s.ints(0), s.ints(-1), axis), axis=1)


def halved_and_repeated(s: Stack) -> None:
    """Means of two frames, repeated, are added."""
    if s.ahead or s.cut:
        return
    before = s.value
    rows, half = (
        s.add("Slice", s.add("Shape", before), s.ints(0), s.ints(1)),
        s.add("Div", _frames(s, before), s.ints(2)),
    )
    pairs = s.add("Concat", rows, half, s.ints(2, FEATURES), axis=0)
    means = s.add("ReduceMean", s.add("Reshape", before, pairs), axes=[2], keepdims=1)
    repeated = s.add("Expand", means, pairs)
    whole = s.add("Concat", rows, s.add("Mul", half, s.ints(2)), s.ints(FEATURES), axis=0)
    s.add("Add", before, s.add("Reshape", repeated, whole))


def padded_before_other_layers(s: Stack) -> None:
    """Padding in front of layers that compute each frame on its own, and of the convolution that needs it."""
    if s.ahead or s.cut:
        return
    k = int(s.rng.integers(2, 5))
    s.add("Pad", s.value, s.ints(0, k - 1, 0, 0, 0, 0), s.const(np.array(0.5, np.float32)))
    s.add("Softmax", s.add("MatMul", s.value, s.weight(FEATURES, FEATURES)), axis=-1)
    s.add("Mul", s.value, s.add("ReduceMean", s.value, axes=[-1], keepdims=1))
    s.add("Reshape", s.add("Reshape", s.value, s.ints(0, -1, 2, 3)), s.ints(0, 0, FEATURES))
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k])
    _as_channels(s)


def padded_for_two(s: Stack) -> None:
    """One convolution has the padding of the next one, too."""
    if s.ahead or s.cut:
        return
    first, second = (int(s.rng.integers(1, 4)) for _ in range(2))
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, first), kernel_shape=[first], pads=[first + second - 2, 0])
    s.add("Conv", s.add("Tanh", s.value), s.weight(FEATURES, FEATURES, second), kernel_shape=[second])
    _as_channels(s)


def cut_from_the_end(s: Stack) -> None:
    """What went in, as many of its last frames as a convolution without padding makes, is added."""
    if s.cut:
        return
    before, k = s.value, int(s.rng.integers(2, 4))
    _as_channels(s)
    s.add("Conv", s.value, s.weight(FEATURES, FEATURES, k), kernel_shape=[k])
    _as_channels(s)
    after = s.value
    s.add("Add", s.add("Slice", before, s.add("Neg", _frames(s, after)), s.ints(2**62), s.ints(1)), after)
    s.ahead += s.every * (k - 1)


def dropped(s: Stack) -> None:
    """All frames but the first ones."""
    count = int(s.rng.integers(1, 4))
    s.add("Slice", s.value, s.ints(count), s.ints(2**62), s.ints(1))
    s.ahead += s.every * count


LATE = (windows_ahead, late_conv, centred, cut_off, padded_behind, dropped, cut_from_the_end, late_windows)

PADDED = (chomped, shifted, memory, joined, halved, transposed, repeated)

COMPUTED = (
    padded_before_other_layers,
    padded_for_two,
    cut_to_length,
    windows_by_offset,
    windows_by_index,
    mean_so_far,
    shifted_by_a_join,
    differences,
    from_the_first,
)
"""Layers with padding for others, and with sizes that are computed from that of the stream."""

CAUSAL: tuple[Callable[[Stack], None], ...] = (
    dense, gated, softmax, norm, conv, conv2d, pool, residual, causal_conv, lstm, over_features, embed, dual_path,
    stacked_frames, grouped, running_sum, conditioned, resized, *PADDED,
    upsampled, thinned, counted, encoded, *COMPUTED,
)  # fmt: skip


def looks_ahead(s: Stack) -> None:
    kind = int(s.rng.integers(5))
    if kind == 0:
        s.add("Softmax", s.value, axis=1)
    elif kind == 1:
        s.add("Sub", s.value, s.add("ReduceMean", s.value, axes=[1]))
    elif kind == 2:
        s.add("Slice", s.value, s.ints(-1), s.ints(-(2**62)), s.ints(1), s.ints(-1))
    elif kind == 3:
        s.add("MatMul", s.add("MatMul", s.value, s.add("Transpose", s.value, perm=[0, 2, 1])), s.nodes[-1].input[0])
    else:
        s.add("Transpose", s.value, perm=[1, 0, 2])
        s.add("RNN", s.value, s.weight(1, FEATURES, FEATURES), s.weight(1, FEATURES, FEATURES), hidden_size=FEATURES,
              direction="reverse")  # fmt: skip
        s.add("Transpose", s.add("Squeeze", s.value, s.ints(1)), perm=[1, 0, 2])
    s.causal = False


def random_stack(rng: np.random.Generator) -> tuple[Stack, dict[str, np.ndarray], str]:
    """A model as it was built, its inputs, and what is in it."""
    s = Stack(rng)
    chosen = [CAUSAL[int(rng.integers(len(CAUSAL)))] for _ in range(int(rng.integers(1, 6)))]
    if rng.integers(5) == 0:
        chosen.insert(int(rng.integers(len(chosen) + 1)), looks_ahead)
    for _ in range(int(rng.integers(3)) if rng.integers(3) == 0 else 0):
        chosen.insert(int(rng.integers(len(chosen) + 1)), LATE[int(rng.integers(len(LATE)))])
    for layer in chosen:
        layer(s)
    frames = s.every * (int(rng.integers(1, 9)) + -(-s.ahead // s.every))
    feeds = {"x": rng.uniform(-1, 1, (int(rng.integers(1, 4)), frames, FEATURES)).astype(np.float32)}
    return s, feeds, " ".join(layer.__name__ for layer in chosen)
