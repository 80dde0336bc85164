"""What each runtime takes: one TOML file per runtime beside this module, or anywhere."""

from rnn_lower.targeting.files import TARGETS, find_target
from rnn_lower.targeting.profile import Target

__all__ = ["TARGETS", "Target", "find_target"]
