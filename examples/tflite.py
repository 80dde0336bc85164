"""Convert an ONNX model of fixed sizes to an int8 TensorFlow Lite model without float operators, with onnx2tf.

    python examples/tflite.py lowered.onnx samples.npz int8.tflite

samples.npz: for each input, an array of samples with an additional first axis, from which the ranges are chosen. The
outputs for the first sample are compared with onnxruntime's. Needs a separate Python with onnx2tf.
"""  # fmt: skip

from __future__ import annotations

import argparse
import collections
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime


def convert(source: Path, samples: dict[str, np.ndarray]) -> bytes:
    """The converted model; with TFLITE_BUILTINS_INT8 alone, an operator that would stay in floats is an error."""
    import onnx2tf  # slow to import, like tensorflow
    import tensorflow as tf

    count = len(next(iter(samples.values())))
    with tempfile.TemporaryDirectory() as folder:
        onnx2tf.convert(
            input_onnx_file_path=str(source), output_folder_path=folder, output_signaturedefs=True,
            keep_shape_absolutely_input_names=list(samples), non_verbose=True,
        )  # fmt: skip
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ({name: x[i] for name, x in samples.items()} for i in range(count))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
        try:
            return bytes(converter.convert())
        except RuntimeError:  # the newer quantizer confuses the scales of a bidirectional RNN with Y and Y_h
            converter.experimental_new_quantizer = False
            return bytes(converter.convert())


def run(model: bytes, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], collections.Counter[str], list[str]]:
    """The outputs in the order of the ONNX model, the number of each operator, and operators with a float tensor."""
    import tensorflow as tf

    without = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(model_content=model, experimental_op_resolver_type=without)
    interpreter.allocate_tensors()
    types = {details["index"]: np.dtype(details["dtype"]) for details in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()
    tensors = [[types[i] for i in (*one["inputs"], *one["outputs"]) if i >= 0] for one in operators]
    floats = [
        one["op_name"] for one, dtypes in zip(operators, tensors, strict=True) if any(t.kind == "f" for t in dtypes)
    ]
    runner = interpreter.get_signature_runner()
    quantized = {}
    for name, details in runner.get_input_details().items():
        x, (scale, zero) = feeds[name], details["quantization"]
        quantized[name] = np.clip(np.rint(x / scale + zero), -128, 127).astype(np.int8) if scale else x
    results, details = runner(**quantized), runner.get_output_details()
    outputs = []
    for name in sorted(results):
        scale, zero = details[name]["quantization"]
        outputs.append((results[name].astype(np.float32) - zero) * np.float32(scale))
    return outputs, collections.Counter(one["op_name"] for one in operators), floats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "samples", "destination"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    with np.load(arguments.samples) as archive:
        samples = {name: archive[name] for name in archive.files}
    model = convert(arguments.source, samples)
    arguments.destination.write_bytes(model)
    feeds = {name: x[0] for name, x in samples.items()}
    got, operators, floats = run(model, feeds)
    wanted = onnxruntime.InferenceSession(arguments.source).run(None, feeds)
    # onnx2tf moves axes of one element in an output; the values behind them stay in order.
    difference = max(float(np.abs(a.ravel() - b.ravel()).max()) for a, b in zip(got, wanted, strict=True))
    print(*(f"{count} {name}" for name, count in operators.most_common()), sep=", ")
    print(f"{len(floats)} operators in floats, {len(model)} bytes, largest difference {difference:.3f}")


if __name__ == "__main__":
    main()
