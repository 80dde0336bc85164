"""The capabilities of each runtime: one TOML file per runtime, in this folder or elsewhere."""

from rnn_lower.targeting.files import TARGETS, find_target, recorded, recorded_target
from rnn_lower.targeting.profile import Target

__all__ = ["TARGETS", "Target", "find_target", "recorded", "recorded_target"]
