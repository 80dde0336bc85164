"""Stream a generated signal through a model, a few frames at a time, and compare with one run over the whole signal.

    python examples/stream_denoiser.py [--frames 5] [--plot out.png]

Prints the largest difference; --plot (needs matplotlib) draws both results over time.
"""  # fmt: skip

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import rnn_lower

MODEL = Path(__file__).parent.parent / "models" / "torch_denoiser.onnx"


def signal(frames: int) -> np.ndarray:
    """Bands of a tone that glides up and down, in noise: [1, frames, 16]."""
    rng = np.random.default_rng(0)
    time = np.arange(frames)[:, None]
    centre = 8 + 6 * np.sin(2 * np.pi * time / 80)
    tone = np.exp(-((np.arange(16)[None, :] - centre) ** 2) / 4)
    return (tone + 0.2 * rng.standard_normal((frames, 16)))[None].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=5, help="in a chunk")
    parser.add_argument("--plot", metavar="OUT.png")
    arguments = parser.parse_args()
    model, x = onnx.load(MODEL), signal(160)

    whole = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    session = rnn_lower.StreamingSession(rnn_lower.stream(model, axis="time"))
    parts = [session.run(x[:, begin : begin + arguments.frames])["y"] for begin in range(0, 160, arguments.frames)]
    streamed = np.concatenate(parts, axis=1)
    print(f"{len(parts)} chunks of {arguments.frames} frames; largest difference: {np.abs(streamed - whole).max():.2g}")

    if arguments.plot:
        import matplotlib.pyplot as plt

        figure, (top, middle, bottom) = plt.subplots(3, 1, sharex=True, figsize=(8, 6), layout="constrained")
        for axes, values, title in ((top, whole, "whole run"), (middle, streamed, "chunk by chunk")):
            axes.imshow(values[0].T, aspect="auto", origin="lower")
            axes.set(title=title, ylabel="band")
        bottom.plot(whole[0, :, 8], label="whole run")
        bottom.plot(streamed[0, :, 8], "--", label="chunk by chunk")
        bottom.set(title="band 8", xlabel="frame", ylabel="output")
        bottom.legend()
        figure.savefig(arguments.plot)


if __name__ == "__main__":
    main()
