"""The results of a kit, feature by feature, and the target file that follows from them."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from rnn_lower.errors import RnnLowerError, public
from rnn_lower.modelio.files import Progress
from rnn_lower.options import OP_TYPES
from rnn_lower.targeting.files import read_keys
from rnn_lower.targeting.probe.manifest import FUSED, TARGET, KitCase, Manifest, read_manifest
from rnn_lower.targeting.probe.results import ERROR, RIGHT, WRONG, Outcome, read_results, run_all

REFUSED = "refused"
"""The constraints of the target prevent the lowering."""

CARRIERS = ("Scan", "Loop")
"""Operators that implement a form; if one of them fails, the runtime does not support the form."""


@dataclasses.dataclass(frozen=True)
class KitReport:
    """The results of a runtime for a kit.

    results: for each feature and form ("fused" and those of the target), the outcome and its detail; "refused" means
        that the rules of the target prevent the feature from being lowered.
    forms: the forms in which at least one result was right.
    failing: operators that, in some form, occur only in models that failed.
    unexplained: feature and form of failures although every operator of the model was right elsewhere.
    proposal: the text of a target file; empty if no lowered model was right.
    """

    target: str
    results: Mapping[str, Mapping[str, Outcome]]
    forms: tuple[str, ...]
    failing: tuple[str, ...]
    unexplained: tuple[tuple[str, str], ...]
    proposal: str

    @property
    def ok(self) -> bool:
        """Whether all lowered models are right."""
        lowered = [outcome for row in self.results.values() for form, outcome in row.items() if form != FUSED]
        return bool(lowered) and all(state in (RIGHT, REFUSED) for state, _ in lowered)

    @property
    def columns(self) -> list[str]:
        """The forms, "fused" first."""
        return list(dict.fromkeys(form for row in self.results.values() for form in row))

    @property
    def errors(self) -> list[str]:
        """The error messages with their counts, the most frequent first."""
        text = collections.Counter(
            why for row in self.results.values() for state, why in row.values() if state == ERROR
        )
        return [f"{why} ({times} {'time' if times == 1 else 'times'})" for why, times in text.most_common()]

    def count(self, form: str) -> str:
        """Return the number of each outcome in a form, as text."""
        return count_outcomes(row[form] for row in self.results.values() if form in row)


def count_outcomes(outcomes: Iterable[Outcome]) -> str:
    """Return the number of each outcome, as text."""
    states = [state for state, _ in outcomes]
    errors = states.count(ERROR)
    text = (
        f"{states.count(RIGHT)} correct, {states.count(WRONG)} wrong without an error, {errors} "
        f"error{'s' * (errors != 1)}"
    )
    return f"{text}, {states.count(REFUSED)} refused" if REFUSED in states else text


@public
def report_kit(
    folder: str | os.PathLike[str], results: str | os.PathLike[str] | None = None, *, run: str | None = None,
    timeout: float = 60.0, progress: Progress | None = None,
) -> KitReport:  # fmt: skip
    """Evaluate the results of a runtime for a kit, feature by feature, and propose a target file.

    Each feature is right, silently wrong or an error.

    results: a folder with CASE/NAME.npy for each output, or with CASE.npz; a missing output counts as an error.
    run: a command that is run for each case, without a shell. {model}, {inputs} and {outputs} are replaced by the
        model, a folder with NAME.npy for each input, and an empty folder for the outputs. The outputs are kept in
        `results` if it is provided.  timeout: the time limit in seconds for each case.

    Raises RnnLowerError if there is no kit, there are no results, or the command cannot be started.
    """
    kit, found = Path(folder), None if results is None else Path(results)
    known = read_manifest(kit)
    if run is not None:
        return _report(kit, known, run_all(kit, known, run, found, timeout, progress))
    if found is None:
        raise RnnLowerError("pass either --results FOLDER or --run COMMAND")
    return _report(kit, known, read_results(kit, known, found))


def _report(folder: Path, manifest: Manifest, outcomes: Mapping[str, Outcome]) -> KitReport:
    """Summarize the results, and propose a target file."""
    results: dict[str, dict[str, Outcome]] = {feature: {} for feature in manifest.features}
    for case in manifest.cases:
        results[case.feature][case.form] = outcomes[case.case]
    for refusal in manifest.refused:
        results[refusal.feature][refusal.form] = (REFUSED, refusal.why)
    lowered = [case for case in manifest.cases if case.form != FUSED]
    forms = _right_forms(lowered, outcomes)
    failing = _failing(lowered, outcomes, forms)
    unexplained = tuple(
        (case.feature, case.form) for case in lowered
        if case.form in forms and outcomes[case.case][0] != RIGHT and not failing & set(case.operators)
    )  # fmt: skip
    right_forms = [form for form in forms if form not in {form for _, form in unexplained}] or forms
    proposal = ""
    if forms:
        keys = read_keys(folder / TARGET)
        proposal = _propose(keys, manifest, results, right_forms, failing, unexplained)
    return KitReport(manifest.target, results, tuple(forms), tuple(sorted(failing)), unexplained, proposal)


def _right_forms(lowered: list[KitCase], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return the forms in which some model is right, in the order of the target."""
    right = {case.form for case in lowered if outcomes[case.case][0] == RIGHT}
    return [form for form in dict.fromkeys(case.form for case in lowered) if form in right]


def _failing(lowered: list[KitCase], outcomes: Mapping[str, Outcome], forms: list[str]) -> set[str]:
    """Return operators that, in some form, only failing models contain; forms without a right model are ignored."""
    failing: set[str] = set()
    for form in forms:
        right: set[str] = set()
        elsewhere: set[str] = set()
        for case in lowered:
            if case.form == form:
                (right if outcomes[case.case][0] == RIGHT else elsewhere).update(case.operators)
        failing |= elsewhere - right
    return failing - set(CARRIERS) - set(OP_TYPES)


def _propose(
    keys: dict[str, Any], manifest: Manifest, results: Mapping[str, Mapping[str, Outcome]], forms: list[str],
    failing: set[str], unexplained: tuple[tuple[str, str], ...],
) -> str:  # fmt: skip
    """Return the kit's target file, updated with the measurements."""
    tried = [outcome[0] for row in results.values() for form, outcome in row.items() if form in forms]
    tried = [state for state in tried if state != REFUSED]
    proposed = {key: value for key, value in keys.items() if key not in ("versions", "slow", "fused", "takes", "avoid")}
    proposed |= {
        "summary": f"proposed from the test results of {manifest.target}: {', '.join(forms)}",
        "status": "measured",
        "source": (
            f"test kit written by {manifest.made_by}: {tried.count(RIGHT)} of {len(tried)} lowered "
            "models returned the expected outputs"
        ),
        "forms": forms,
        "static_batch": True,
    }
    if "unroll" in forms and forms[0] == "unroll":
        proposed["unroll_up_to"] = "always"
    if "takes" in keys:
        proposed["takes"] = [op_type for op_type in keys["takes"] if op_type not in failing]
    if avoid := sorted({*keys.get("avoid", ()), *failing}):
        proposed["avoid"] = avoid
    proposed["fused"] = fused_tables({feature: row[FUSED] for feature, row in results.items() if FUSED in row})
    return "".join(_remarks(unexplained)) + tomli_w.dumps(
        {key: value for key, value in proposed.items() if value != {}}
    )


def _remarks(unexplained: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield "# Tested only with known sizes, in float32 and at one opset.\n"
    for feature, form in unexplained:
        text = f"The models of {feature} ({form}) failed"
        yield f"# {text}, although each of their operators also occurs in a correct model.\n"


def fused_tables(rows: Mapping[str, Outcome]) -> dict[str, dict[str, list[str]]]:
    """Return, by operator, the features of the native operators that are right and those that are silently wrong."""
    tables: dict[str, dict[str, list[str]]] = {}
    for op in reversed(OP_TYPES):
        for kind in (RIGHT, WRONG):
            names = [row.partition(" ")[2] for row, text in rows.items() if row.startswith(op) and text[0] == kind]
            if names:
                tables.setdefault(op, {})[kind] = names
    return tables
