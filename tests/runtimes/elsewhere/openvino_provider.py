"""Run one model on onnxruntime's OpenVINO provider, a package that takes onnxruntime's place: MODEL.onnx, MODEL.onnx.npz."""

import sys

import numpy as np
import onnxruntime

path = sys.argv[1]
with np.load(f"{path}.npz") as archive:
    feeds = {name: archive[name] for name in archive.files}
session = onnxruntime.InferenceSession(path, providers=["OpenVINOExecutionProvider"])
session.disable_fallback()
assert session.get_providers()[0] == "OpenVINOExecutionProvider"
np.savez(f"{path}.out.npz", *session.run(None, feeds))
