"""Run one model on the simulator of rknn-toolkit2, which has a Python of its own: MODEL.onnx with MODEL.onnx.npz."""

import sys

import numpy as np
from rknn.api import RKNN

path = sys.argv[1]
with np.load(f"{path}.npz") as archive:
    feeds = [archive[name] for name in archive.files]
rknn = RKNN(verbose=False)
rknn.config(target_platform="rk3588")
assert rknn.load_onnx(model=path) == 0
assert rknn.build(do_quantization=False) == 0
assert rknn.init_runtime() == 0
np.savez(f"{path}.out.npz", *rknn.inference(inputs=feeds, data_format="nchw"))
