"""Models over a stream [N, T, F] that cannot run chunk by chunk, with the node that is to blame."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from layers import FEATURES, Stack, lstm
from onnx import TensorProto, helper

F = FEATURES


def recurrent(op: str, direction: str) -> Callable[[Stack], str]:
    def build(s: Stack) -> str:
        count, gates = 2 if direction == "bidirectional" else 1, {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
        s.add("Transpose", s.value, perm=[1, 0, 2])
        s.add(
            op,
            s.value,
            s.weight(count, gates * F, F),
            s.weight(count, gates * F, F),
            hidden_size=F,
            direction=direction,
        )
        culprit = s.nodes[-1].name
        s.add("Transpose", s.value, perm=[2, 0, 1, 3])
        s.add("Reshape", s.value, s.ints(0, 0, count * F))
        return culprit

    return build


def first_begins(s: Stack) -> str:
    """An initial state that is the first frame of the stream."""
    first = s.add("Transpose", s.add("Slice", s.value, s.ints(0), s.ints(1), s.ints(1)), perm=[1, 0, 2])
    x = s.add("Transpose", "x", perm=[1, 0, 2])
    s.add("GRU", x, s.weight(1, 3 * F, F), s.weight(1, 3 * F, F), "", "", first, hidden_size=F)
    culprit = s.nodes[-1].name
    s.add("Transpose", s.add("Squeeze", s.value, s.ints(1)), perm=[1, 0, 2])
    return culprit


def single(
    op: str, *inputs: Callable[[Stack], str], channels: bool = False, **attributes: object
) -> Callable[[Stack], str]:
    """One operator on the stream, with time last if `channels`."""

    def build(s: Stack) -> str:
        if channels:
            s.add("Transpose", s.value, perm=[0, 2, 1])
        x = s.value
        s.add(op, x, *(make(s) for make in inputs), **attributes)
        culprit = s.nodes[-1].name
        if channels:
            s.add("Transpose", s.value, perm=[0, 2, 1])
        return culprit

    return build


def ints(*numbers: int) -> Callable[[Stack], str]:
    return lambda s: s.ints(*numbers)


def weight(*shape: int) -> Callable[[Stack], str]:
    return lambda s: s.weight(*shape)


def chomped(cut: int, front: int = 0) -> Callable[[Stack], str]:
    """A convolution padded by 2 on both sides, of which other frames than the last 2 are cut off."""

    def build(s: Stack) -> str:
        s.add("Transpose", s.value, perm=[0, 2, 1])
        s.add("Conv", s.value, s.weight(F, F, 3), kernel_shape=[3], pads=[2, 2])
        conv = s.nodes[-1].name
        s.add("Slice", s.value, s.ints(front), s.ints(-cut), s.ints(2))
        culprit = s.nodes[-1].name if front else conv
        s.add("Transpose", s.value, perm=[0, 2, 1])
        return culprit

    return build


def padded_sum(s: Stack) -> str:
    s.add("Pad", s.value, s.ints(0, 0, 0, 0, 2, 0))
    culprit = s.nodes[-1].name
    s.add("MatMul", s.value, s.weight(F, F))
    return culprit


def last_of_padding(s: Stack) -> str:
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("Conv", s.value, s.weight(F, F, 3), kernel_shape=[3], pads=[2, 2])
    culprit = s.nodes[-1].name
    s.add("Slice", s.value, s.ints(-1), s.ints(2**62), s.ints(2))
    return culprit


def einsum(equation: str, *shape: int) -> Callable[[Stack], str]:
    """A product of the stream and a constant."""
    return single("Einsum", weight(*shape), equation=equation)


def attention(s: Stack) -> str:
    x = s.value
    keys = s.add("Transpose", x, perm=[0, 2, 1])
    s.add("MatMul", x, keys)
    culprit = s.nodes[-1].name
    s.add("MatMul", s.add("Softmax", s.value, axis=-1), x)
    return culprit


def minus_mean(s: Stack) -> str:
    x = s.value
    s.add("ReduceMean", x, axes=[1])
    culprit = s.nodes[-1].name
    s.add("Sub", x, s.value)
    return culprit


def positions(s: Stack) -> str:
    """A number for each frame, counted from the last one."""
    x = s.value
    length = s.add("Gather", s.add("Shape", x), s.const(np.array(1, np.int64)), axis=0)
    s.add("Range", length, s.const(np.array(0, np.int64)), s.const(np.array(-1, np.int64)))
    culprit = s.nodes[-1].name
    count = s.add("Cast", s.value, to=TensorProto.FLOAT)
    s.add("Add", x, s.add("Unsqueeze", count, s.ints(-1)))
    return culprit


def by_length(s: Stack) -> str:
    x = s.value
    length = s.add("Gather", s.add("Shape", x), s.const(np.array(1, np.int64)), axis=0)
    s.add("Cast", length, to=TensorProto.FLOAT)
    culprit = s.nodes[-1].name
    s.add("Div", x, s.value)
    return culprit


def length_of(s: Stack, x: str) -> str:
    return s.add("Slice", s.add("Shape", x), s.ints(1), s.ints(2))


def looked_up_length(s: Stack) -> str:
    """The frames choose among sizes, one of which is the length."""
    sizes = s.add("Shape", "x")
    chosen = s.add("Cast", s.add("Greater", "x", s.const(np.array(0, np.float32))), to=TensorProto.INT64)
    s.add("Gather", sizes, chosen, axis=0)
    culprit = s.nodes[-1].name
    s.add("Cast", s.value, to=TensorProto.FLOAT)
    return culprit


def length_in_each_frame(s: Stack) -> str:
    """Each frame has the number of all of them."""
    length = length_of(s, "x")
    s.add("Expand", length, length)
    culprit = s.nodes[-1].name
    counts = s.add("Unsqueeze", s.add("Cast", s.value, to=TensorProto.FLOAT), s.ints(1))
    s.add("Add", "x", counts)
    return culprit


def one_frame_is_another_thing(s: Stack) -> str:
    """Minus the length is minus one for a chunk of one frame."""
    less = s.add("Mul", length_of(s, "x"), s.ints(-1))
    s.add("Equal", less, s.ints(-1))
    culprit = s.nodes[-1].name
    s.add("Where", s.value, s.add("Neg", "x"), "x")
    return culprit


def encoder_decoder(s: Stack) -> str:
    """The last state of one node begins another over the same stream."""
    s.add("Transpose", s.value, perm=[1, 0, 2])
    x, weights = s.value, (s.weight(1, 3 * F, F), s.weight(1, 3 * F, F))
    s.nodes.append(helper.make_node("GRU", [x, *weights], ["", "final"], name="encoder", hidden_size=F))
    s.nodes.append(helper.make_node("GRU", [x, *weights, "", "", "final"], ["all"], name="decoder", hidden_size=F))
    s.add("Transpose", s.add("Squeeze", "all", s.ints(1)), perm=[1, 0, 2])
    return "decoder"


def final_to_frames(s: Stack) -> str:
    """The last state is added to every frame."""
    s.add("Transpose", s.value, perm=[1, 0, 2])
    x = s.value
    s.nodes.append(
        helper.make_node(
            "GRU", [x, s.weight(1, 3 * F, F), s.weight(1, 3 * F, F)], ["", "final"], name="rnn", hidden_size=F
        )
    )
    s.add("Add", x, "final")
    culprit = s.nodes[-1].name
    s.add("Transpose", s.value, perm=[1, 0, 2])
    return culprit


def both_rates(s: Stack) -> str:
    """Every second frame, joined with every frame."""
    s.add("Transpose", s.value, perm=[0, 2, 1])
    x = s.value
    half = s.add("Conv", x, s.weight(F, F, 2), kernel_shape=[2], strides=[2])
    s.add("Add", x, half)
    culprit = s.nodes[-1].name
    s.add("Transpose", s.value, perm=[0, 2, 1])
    return culprit


def mixed_frames(s: Stack) -> str:
    """[N, T, F] read as [N, F, T]."""
    s.add("Reshape", s.value, s.add("Concat", s.ints(0), s.ints(F), s.ints(-1), axis=0))
    culprit = s.nodes[-1].name
    s.add("Transpose", s.value, perm=[0, 2, 1])
    return culprit


def merged_batch(s: Stack) -> str:
    s.add("Transpose", s.value, perm=[1, 0, 2])
    s.add("Reshape", s.value, s.ints(-1, F))
    s.add(
        "Reshape",
        s.value,
        s.add("Concat", s.add("Gather", s.add("Shape", "x"), s.ints(0), axis=0), s.ints(-1, F), axis=0),
    )
    return s.nodes[-1].name


def state_of_the_stream(s: Stack) -> str:
    """An initial state that is made of the frames."""
    lstm(s)
    first = s.add("ReduceMax", s.value, axes=[1], keepdims=0)
    del first
    return s.nodes[-1].name


def condition(s: Stack) -> str:
    x = s.value
    s.add("ReduceMax", x, axes=[0, 1, 2], keepdims=0)
    return s.nodes[-1].name


def steps(rows: int, **attributes: object) -> Callable[[Stack], str]:
    """A Scan over time with a sum as its state, which broadcasts to all rows where it has one."""
    return lambda s: _summed(s, rows, attributes)


def _summed(s: Stack, rows: int, attributes: dict[str, object]) -> str:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "frame"], ["next"]), helper.make_node("Identity", ["next"], ["out"])], "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, F]) for name in ("sum", "frame")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, F]) for name in ("next", "out")],
    )  # fmt: skip
    x = s.add("Transpose", s.value, perm=[1, 0, 2])
    s.add("Scan", s.weight(rows, F), x, count=2, body=body, num_scan_inputs=1, **attributes)
    culprit = s.nodes[-1].name
    s.add("Transpose", s.nodes[-1].output[1], perm=[1, 0, 2])
    return culprit


def in_a_loop(s: Stack) -> str:
    """An LSTM over time in the body of a Loop."""
    x, w, r = s.add("Transpose", s.value, perm=[1, 0, 2]), s.weight(1, 4 * F, F), s.weight(1, 4 * F, F)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("LSTM", [x, w, r], ["inner"], name="in_loop", hidden_size=F),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("inner", TensorProto.FLOAT, None),
        ],
    )
    s.add("Loop", s.const(np.array(2, np.int64)), s.const(np.array(True)), body=body)
    culprit = s.nodes[-1].name
    s.add("ReduceSum", s.value, s.ints(0, 2), keepdims=0)
    s.add("Transpose", s.value, perm=[1, 0, 2])
    return culprit


def reflected(s: Stack) -> str:
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("Pad", s.value, s.ints(0, 0, 2, 0, 0, 0), mode="reflect")
    culprit = s.nodes[-1].name
    s.add("Conv", s.value, s.weight(F, F, 3), kernel_shape=[3])
    s.add("Transpose", s.value, perm=[0, 2, 1])
    return culprit


def group_of_time(s: Stack) -> str:
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("InstanceNormalization", s.value, s.const(np.ones(F, np.float32)), s.weight(F))
    culprit = s.nodes[-1].name
    s.add("Transpose", s.value, perm=[0, 2, 1])
    return culprit


def squeezed_without_axes(s: Stack) -> str:
    x = s.add("Unsqueeze", s.value, s.ints(1))
    s.add("Squeeze", x)
    return s.nodes[-1].name


def random_noise(s: Stack) -> str:
    x = s.value
    s.add("RandomNormalLike", x)
    culprit = s.nodes[-1].name
    s.add("Add", x, s.value)
    return culprit


def dropped(s: Stack) -> str:
    s.add("Dropout", s.value, s.const(np.array(0.5, np.float32)), s.const(np.array(True)))
    return s.nodes[-1].name


def mask_of_dropout(s: Stack) -> str:
    """An output that no rule tells of."""
    x = s.value
    s.add("Dropout", x, count=2)
    culprit = s.nodes[-1].name
    s.add("Where", s.nodes[-1].output[1], x, x)
    return culprit


def every_pair(s: Stack) -> str:
    """[N, T, F] to [T, N, T, F]."""
    x = s.value
    s.add("Expand", x, s.add("Concat", s.add("Gather", s.add("Shape", x), s.ints(1), axis=0), s.ints(1, 1, 1), axis=0))
    culprit = s.nodes[-1].name
    s.add("ReduceMax", s.value, axes=[0], keepdims=0)
    return culprit


def length_in_a_branch(s: Stack) -> str:
    """Which branch is taken depends on how many frames there are."""
    x = s.value
    length = s.add("Gather", s.add("Shape", x), s.const(np.array(1, np.int64)), axis=0)
    s.add("Greater", length, s.const(np.array(4, np.int64)))
    culprit = s.nodes[-1].name
    bodies = {
        name: helper.make_graph(
            [helper.make_node(op, [x], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, op in (("then_branch", "Tanh"), ("else_branch", "Relu"))
    }
    s.add("If", s.value, **bodies)
    return culprit


def gemm_over_time(s: Stack) -> str:
    s.add("Reshape", s.value, s.ints(-1, F))
    x = s.value
    s.add("Gemm", x, s.value, transA=1)
    return s.nodes[-1].name


def padded_overlap(s: Stack) -> str:
    s.add("Transpose", s.value, perm=[0, 2, 1])
    s.add("Pad", s.value, s.ints(0, 0, 1, 0, 0, 0))
    s.add("ConvTranspose", s.value, s.weight(F, F, 3), strides=[2])
    culprit = s.nodes[-1].name
    s.add("Transpose", s.value, perm=[0, 2, 1])
    return culprit


def padded_thinned(s: Stack) -> str:
    s.add("Pad", s.value, s.ints(0, 1, 0, 0, 0, 0))
    s.add("Slice", s.value, s.ints(0), s.ints(2**62), s.ints(1), s.ints(2))
    return s.nodes[-1].name


def rows_of_a_table(s: Stack) -> str:
    x = s.value
    rows = s.add("Slice", s.weight(99, F), s.ints(1), length_of(s, x), s.ints(0))
    culprit = s.nodes[-1].name
    s.add("Add", x, rows)
    return culprit


def windows(offsets: list[int], front: int = 0, behind: int = 0, factor: int = 1) -> Callable[[Stack], str]:
    """A sum of frames that are selected by the index of each frame, perhaps multiplied, plus offsets."""

    def build(s: Stack) -> str:
        length = s.add("Squeeze", length_of(s, s.value), s.ints(0))
        padded = s.add("Pad", "x", s.ints(0, front, 0, 0, behind, 0))
        pad = s.nodes[-1].name
        indices = s.add("Range", s.const(np.array(0, np.int64)), length, s.const(np.array(1, np.int64)))
        indices = s.add("Mul", indices, s.ints(factor)) if factor > 1 else indices
        indices = s.add("Add", s.add("Unsqueeze", indices, s.ints(1)), s.ints(*offsets))
        s.add("Gather", padded, indices, axis=1)
        culprit = pad if behind else s.nodes[-1].name
        s.add("ReduceSum", s.value, s.ints(2), keepdims=0)
        return culprit

    return build


def looking_ahead_by_slices(s: Stack) -> str:
    padded = s.add("Pad", "x", s.ints(0, 1, 0, 0, 1, 0))
    culprit = s.nodes[-1].name
    s.add("Sum", *(s.add("Slice", padded, s.ints(n), s.ints(n - 2 or 2**62), s.ints(1)) for n in range(3)))
    return culprit


def distances(s: Stack) -> str:
    """A mask of the frames that are less than three before each frame."""
    length = s.add("Squeeze", length_of(s, "x"), s.ints(0))
    indices = s.add("Range", s.const(np.array(0, np.int64)), length, s.const(np.array(1, np.int64)))
    s.add("Sub", s.add("Unsqueeze", indices, s.ints(1)), s.add("Unsqueeze", indices, s.ints(0)))
    culprit = s.nodes[-1].name
    near = s.add("Cast", s.add("Less", s.add("Abs", s.value), s.ints(3)), to=TensorProto.FLOAT)
    s.add("MatMul", near, "x")
    return culprit


CULPRITS: dict[str, Callable[[Stack], str]] = {
    **{f"{d} {op}": recurrent(op, d) for op in ("RNN", "GRU", "LSTM") for d in ("reverse", "bidirectional")},
    "softmax over time": single("Softmax", axis=1),
    "log softmax over time": single("LogSoftmax", axis=1),
    "hardmax over time": single("Hardmax", axis=1),
    "norm over time": single("LpNormalization", axis=1),
    "attention": attention,
    "mean over time": minus_mean,
    "max over time": single("ReduceMax", axes=[1]),
    "sum over all": single("ReduceSum"),
    "L2 over time": single("ReduceL2", axes=[-2]),
    "argmax over time": single("ArgMax", axis=1),
    "largest over time": single("TopK", ints(3), axis=1, count=2),
    "layer norm over time": single("LayerNormalization", weight(1), axis=1),
    "layer norm with a scale for each frame": single("LayerNormalization", weight(9, F), weight(F), axis=-1),
    "layer norm with a shift for each frame": single("LayerNormalization", weight(F), weight(9, 1), axis=-1),
    "instance norm over time": group_of_time,
    "symmetric conv": single("Conv", weight(F, F, 3), channels=True, kernel_shape=[3], pads=[1, 1]),
    "conv that looks ahead": single("Conv", weight(F, F, 3), channels=True, kernel_shape=[3], pads=[0, 2]),
    "conv with too little padding": single("Conv", weight(F, F, 4), channels=True, kernel_shape=[4], pads=[2, 1]),
    "conv with too much padding": single(
        "Conv", weight(F, F, 3), channels=True, kernel_shape=[3], pads=[5, 0], strides=[2]
    ),
    "conv padded automatically": single(
        "Conv", weight(F, F, 3), channels=True, kernel_shape=[3], auto_pad="SAME_UPPER"
    ),
    "strides padded automatically": single(
        "Conv", weight(F, F, 3), channels=True, kernel_shape=[3], strides=[2], auto_pad="SAME_UPPER"
    ),
    "conv over frames as channels": single("Conv", weight(3, 9, 1), kernel_shape=[1]),
    "transposed conv of a length": single(
        "ConvTranspose", weight(F, F, 2), channels=True, strides=[2], output_shape=[18]
    ),
    "transposed conv of what is padded": padded_overlap,
    "every second frame of what is padded": padded_thinned,
    "rows of a table from the second on": rows_of_a_table,
    "transposed conv with gaps": single("ConvTranspose", weight(F, F, 2), channels=True, kernel_shape=[2], strides=[3]),
    "transposed conv that overlaps": single("ConvTranspose", weight(F, F, 3), channels=True, strides=[2]),
    "symmetric max pool": single("MaxPool", channels=True, kernel_shape=[3], pads=[1, 1]),
    "average that leaves padding out": single("AveragePool", channels=True, kernel_shape=[3], pads=[2, 0]),
    "dilated pool": single("MaxPool", channels=True, kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER"),
    "pool rounded up": single("MaxPool", channels=True, kernel_shape=[2], strides=[2], ceil_mode=1),
    "global pool": single("GlobalAveragePool", channels=True),
    "pad behind": single("Pad", ints(0, 0, 0, 0, 1, 0)),
    "pad cut off": single("Pad", ints(0, -1, 0, 0, 0, 0), mode="edge"),
    "reflected": reflected,
    "flip": single("Slice", ints(-1), ints(-(2**62)), ints(1), ints(-1)),
    "the first frame begins a node": first_begins,
    "first frames": single("Slice", ints(0), ints(2), ints(1)),
    "third frame": single("Gather", ints(3), axis=1),
    "all but the last": single("Slice", ints(0), ints(-1), ints(1)),
    "every second frame, backwards": single("Slice", ints(-1), ints(-(2**62)), ints(1), ints(-2)),
    "every second frame from the fourth on": single("Slice", ints(3), ints(2**62), ints(1), ints(2)),
    "split in time": single("Split", ints(1, 8), axis=1),
    "sum from here on": single("CumSum", lambda s: s.const(np.array(1, np.int64)), reverse=1),
    "sum of a label that is the stream": einsum("ntf,kt->nkf", 6, 9),
    "frames multiplied with each other": lambda s: (
        s.add("Einsum", s.value, s.value, equation="ntf,nsf->nts"),
        s.nodes[-1].name,
    )[1],
    "a label with values for each frame": einsum("ntf,tf->ntf", 9, F),
    "chomp that is too short": chomped(1),
    "shift to the front": single("Pad", ints(0, -1, 0, 0, 1, 0)),
    "shift by more than the padding": single("Pad", ints(0, 1, 0, 0, -2, 0)),
    "joined with zeros behind": lambda s: (
        s.add("Concat", s.value, s.const(np.zeros((2, 3, F), np.float32)), axis=1),
        s.nodes[-1].name,
    )[1],
    "transposed conv that is not cut off": single("ConvTranspose", weight(F, F, 3), channels=True, kernel_shape=[3]),
    "transposed conv cut off in front": single(
        "ConvTranspose", weight(F, F, 3), channels=True, kernel_shape=[3], pads=[2, 0]
    ),
    "transposed conv of the same length": single(
        "ConvTranspose", weight(F, F, 3), channels=True, kernel_shape=[3], pads=[1, 1]
    ),
    "last frame of a chomp that is too short": last_of_padding,
    "sum of all over padding behind": padded_sum,
    "resize to the features": single(
        "Resize", lambda s: "", lambda s: "", ints(1, F, F), coordinate_transformation_mode="asymmetric"
    ),
    "resize": single("Resize", lambda s: "", lambda s: s.const(np.array([1, 2, 1], np.float32)), mode="linear"),
    "resize by a half": single("Resize", lambda s: "", lambda s: s.const(np.array([1, 1.5, 1], np.float32))),
    "resize rounded down": single(
        "Resize", lambda s: "", lambda s: s.const(np.array([1, 2, 1], np.float32)), nearest_mode="floor"
    ),
    "windows that look ahead": windows([0, 1, 2], 1, 1),
    "windows of later frames": windows([1, 3], 0, 3),
    "windows that look ahead by slices": looking_ahead_by_slices,
    "windows from the end": windows([-1, 0]),
    "windows by other indices": windows([0], factor=2),
    "mask by distances of frames": distances,
    "top frames": single("TopK", ints(2), axis=1, count=2),
    "reverse sequence": single("ReverseSequence", ints(3, 3), time_axis=1, batch_axis=0),
    "tile": single("Tile", ints(1, 2, 1)),
    "joined with itself": lambda s: (s.add("Concat", s.value, s.value, axis=1), s.nodes[-1].name)[1],
    "joined with a constant": single("Concat", weight(2, 3, F), axis=1),
    "a number for each frame": single("Add", weight(9, F)),
    "a factor for each frame": single("Mul", weight(1, 9, 1)),
    "positions from the last one": positions,
    "divided by the length": by_length,
    "looked up length": looked_up_length,
    "the length in each frame": length_in_each_frame,
    "one frame is another thing": one_frame_is_another_thing,
    "encoder and decoder": encoder_decoder,
    "final state for all frames": final_to_frames,
    "two rates": both_rates,
    "mixed frames": mixed_frames,
    "batch and time mixed up": merged_batch,
    "maximum of all": condition,
    "maximum of states": state_of_the_stream,
    "edges behind": single("Pad", ints(0, 0, 2, 0, 0, 1), mode="edge", channels=True),
    "scan whose state grows": steps(1),
    "scan from the end": steps(2, scan_input_directions=[1]),
    "scan that reverses": steps(2, scan_output_directions=[1]),
    "scan over rows": steps(2, scan_input_axes=[1]),
    "in a loop": in_a_loop,
    "squeezed without axes": squeezed_without_axes,
    "noise": random_noise,
    "gram matrix": gemm_over_time,
    "dropout in training": dropped,
    "mask of a dropout": mask_of_dropout,
    "every pair of frames": every_pair,
    "a branch by the length": length_in_a_branch,
    "no rule": single("Det"),
    "nonzero": single("NonZero"),
    "one shape for all": single("Reshape", ints(2, 9, F, 1)),
}


def model_of(name: str) -> tuple[onnx.ModelProto, str]:
    """The model, and the name of the node to blame."""
    s = Stack(np.random.default_rng(0), 17)
    culprit = CULPRITS[name](s)
    return s.model(), culprit
