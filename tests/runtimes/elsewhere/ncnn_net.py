"""Convert one model by pnnx and run it on ncnn, which have a Python of their own: MODEL.onnx with MODEL.onnx.npz."""

import re
import subprocess
import sys
from pathlib import Path

import ncnn
import numpy as np

KINDS = {"float32": "f32", "int32": "i32", "int64": "i64", "bool": "bool"}

path = Path(sys.argv[1])
with np.load(f"{path}.npz") as archive:
    feeds = [archive[name] for name in archive.files]
shapes = ",".join(f"[{','.join(map(str, one.shape))}]{KINDS[str(one.dtype)]}" for one in feeds)
command = [Path(sys.executable).parent / "pnnx", path, f"inputshape={shapes}", "fp16=0"]
subprocess.run(command, cwd=path.parent, check=True)
stem = str(path.with_suffix("")).replace("-", "_")
# Beside the model pnnx writes a script that runs it; it alone says which axis of each value was taken for the batch.
script = Path(f"{stem}_ncnn.py").read_text()
given = re.findall(r"ncnn\.Mat\(.*?batch_index=(\d+)", script)
wanted = re.findall(r"\.numpy\(batch_index=(\d+)", script)
results = []
with ncnn.Net() as net:
    net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_fp16_packed = False
    assert net.load_param(f"{stem}.ncnn.param") == 0
    assert net.load_model(f"{stem}.ncnn.bin") == 0
    with net.create_extractor() as extractor:
        for place, (one, axis) in enumerate(zip(feeds, given, strict=True)):
            mat = ncnn.Mat(np.ascontiguousarray(one), batch_index=int(axis)).clone()
            assert extractor.input(f"in{place}", mat) == 0
        for place, axis in enumerate(wanted):
            code, mat = extractor.extract(f"out{place}")
            assert code == 0
            results.append(mat.numpy(batch_index=int(axis)).copy())
np.savez(f"{path}.out.npz", *results)
