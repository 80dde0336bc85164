"""Where models are. `SHARED` is a folder beside the checkout with models and cases of others; tests skip without it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


def own_models() -> list[Path]:
    return sorted((ROOT / "models").glob("*.onnx"))
