"""The parser of the command line, and the values of its arguments."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import rnn_lower
from rnn_lower import untrusted
from rnn_lower.errors import RnnLowerError
from rnn_lower.options import ATOL, FORMS, RTOL, Dims, Options
from rnn_lower.validation import LIMITS, check_numbers

Command = Callable[[argparse.Namespace], int]

DONE, DIFFERENT, BAD, UNFORESEEN = 0, 1, 2, 3
"""Exit codes."""


EXAMPLES: dict[str, tuple[str, ...]] = {
    "lower": (
        "in.onnx out.onnx",
        "in.onnx out.onnx --target tract --check",
        "in.onnx out.onnx --form unroll --dim time=20 --prove",
        "in.onnx other.onnx --out-dir lowered",
        "- - < in.onnx > out.onnx",
    ),
    "stream": ("in.onnx chunks.onnx --time time --check", "in.onnx one_step.onnx --time time --step 1 --dim batch=1"),
    "unstream": ("chunks.onnx whole.onnx --check", "step.onnx whole.onnx --state h=hn --time 'x[1]'"),
    "check": ("in.onnx out.onnx", "in.onnx out.onnx --runs 1 --rtol 1e-4 --json"),
    "prove": ("in.onnx out.onnx",),
    "raise": ("loops.onnx out.onnx",),
    "inspect": ("in.onnx", "in.onnx --target rknn --dim batch=1 time=20", "in.onnx --json"),
    "lint": ("out.onnx --target onnxruntime",),
    "targets": ("", "openvino"),
    "kit": ("-o kit --target portable --include 'GRU last*'",),
    "kit-report": ("kit --run 'python mine.py {model} {inputs} {outputs}' -o mine.toml", "kit --results results"),
    "report": ("in.onnx -o report.html", "in.onnx --target openvino", "in.onnx --svg -o node.svg"),
}
"""The examples that --help prints; a test runs each of them in a folder that contains models with these names."""


USAGE = {
    "lower": "rnn-lower lower [options] IN.onnx OUT.onnx, or IN.onnx ... --out-dir FOLDER",
    "stream": "rnn-lower stream [options] IN.onnx OUT.onnx",
    "raise": "rnn-lower raise [options] IN.onnx OUT.onnx",
    "unstream": "rnn-lower unstream [options] IN.onnx OUT.onnx",
}
"""Usage lines of the commands whose output file argparse would show as another input."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        slip = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        hint = self._hint(slip[1]) if slip else ""
        if re.fullmatch(r"unrecognized arguments: [^-]\S*\.onnx", message):
            hint = "; name the output directly after the input, before any option, or use -o OUT.onnx"
        self.exit(BAD, f"{self.prog}: error: {message}{hint}\n")

    def _hint(self, flag: str) -> str:
        """Where a flag is known, or a similar flag: the main parser reports arguments that a command does not know."""
        choices = (action.choices for action in self._actions if isinstance(action.choices, dict))
        commands = {name: parser._option_string_actions for each in choices for name, parser in each.items()}
        if known := [name for name, flags in commands.items() if flag in flags]:
            return f"; only rnn-lower {', '.join(known)} {'has' if len(known) == 1 else 'have'} this option"
        every = {*self._option_string_actions, *(flag for flags in commands.values() for flag in flags)}
        if flag in self._option_string_actions:
            return f"; write rnn-lower {flag}, without a command"
        near = difflib.get_close_matches(flag, every, 1)
        return f"; did you mean {near[0]}?" if near else ""


def make_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of all commands; it sets `command` to the function to call."""
    parser = _Parser(
        prog="rnn-lower", description="Rewrite RNN, GRU and LSTM nodes of ONNX models as primitive operators."
    )
    parser.add_argument("--version", action="version", version=f"rnn-lower {rnn_lower.__version__}")
    kinds = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = kinds.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.",
            epilog="examples:\n" + "".join(f"  rnn-lower {name} {example}\n" for example in EXAMPLES[name]),
            usage=USAGE.get(name), formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        added.set_defaults(command=commands[name])
        added.add_argument("-q", "--quiet", action="store_true", help="print only errors and, with --json, the result")
        added.add_argument("-v", "--verbose", action="store_true", help="also print reasons and details")
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        return added

    _lower_arguments(add("lower", "replace recurrent nodes with primitive operators"))
    _stream_arguments(
        add("stream", "write a streaming model, which runs chunk by chunk with its state as inputs and outputs")
    )

    _unstream_arguments(add("unstream", "convert a streaming model back to a model that runs on whole sequences"))

    check = add("check", "compare two models by proof and by running both")
    check.add_argument("original", metavar="A.onnx", help="the original model; - means stdin")
    check.add_argument("lowered", metavar="B.onnx", help="the lowered model; - means stdin")
    _check_arguments(check)

    _raise_arguments(add("raise", "replace loops with recurrent nodes that are proved equivalent to the loops"))
    _prove_arguments(add("prove", "prove in exact arithmetic that two models compute the same function"))

    inspect = add("inspect", "list the recurrent nodes of a model and their features")
    inspect.add_argument("model", metavar="IN.onnx", help="the model; - means stdin")
    text = "also report whether this runtime runs each node correctly without lowering"
    inspect.add_argument("--target", metavar="RUNTIME", help=text)
    _fixed_sizes(inspect)

    lint = add("lint", "list the nodes that a runtime does not support, grouped by the reason")
    lint.add_argument("model", metavar="IN.onnx", help="the model; - means stdin")
    lint.add_argument(
        "--target", metavar="RUNTIME", required=True, help="a runtime's name, or the path of a .toml file"
    )
    _fixed_sizes(lint)

    targets = add("targets", "list the runtimes that --target accepts, or describe one of them")
    targets.add_argument("target", nargs="?", metavar="RUNTIME", help="a runtime's name, or the path of a .toml file")
    _report_arguments(add("report", "write an HTML report about the recurrent nodes of a model"))
    _kit_arguments(
        add("kit", "write small test models, with inputs and expected outputs, to find out what a runtime supports")
    )
    text = (
        "evaluate the outputs that a runtime computed for the test models of `rnn-lower kit`, and propose a target file"
    )
    _kit_report_arguments(add("kit-report", text))
    return parser


def _lower_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="IN.onnx",
        nargs="+",
        help="the input model, followed by OUT.onnx, or several input models with --out-dir; - means stdin or stdout",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o", "--output", metavar="OUT.onnx", help="the output file, which may be IN.onnx; - means stdout"
    )
    where.add_argument(
        "--out-dir", metavar="FOLDER", help="write each lowered model to this folder, under the name of its input file"
    )
    _form(parser)
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="lower only nodes whose name or operator matches this pattern",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GLOB",
        help="do not lower nodes whose name or operator matches this pattern",
    )
    _sizes_and_limits(parser)
    _option(parser, "--keep-native", "keep_native", action="store_true")
    _option(parser, "--as-function", "as_function", action="store_true")
    _option(parser, "--fuse-directions", "fuse_directions", action="store_true")
    _option(parser, "--loops", "loops", action="store_true")
    _option(parser, "--raise-loops", "raise_loops", action="store_true")
    _option(parser, "--legalize-all", "legalize_all", action="store_true")
    _option(parser, "--dequantize", "dequantize", action="store_true")
    _check_and_prove(
        parser,
        check="before writing, compare the lowered model with the original",
        prove="write the model only if it is proved to compute the same function as the original",
    )
    _check_arguments(parser)


def _check_and_prove(parser: argparse.ArgumentParser, check: str, prove: str) -> None:
    parser.add_argument("--check", action="store_true", help=check)
    parser.add_argument("--prove", action="store_true", help=prove)


def _raise_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="IN.onnx", nargs="+", help="the input model, followed by OUT.onnx; - means stdin or stdout"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.onnx", help="the output file, which may be IN.onnx; - means stdout"
    )
    _fixed_sizes(parser)


def _prove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("original", metavar="A.onnx", help="the original model; - means stdin")
    parser.add_argument("lowered", metavar="B.onnx", help="the lowered model; - means stdin")
    parser.add_argument(
        "--points",
        type=int,
        default=2,
        metavar="N",
        help="number of random points at which the models are compared (default 2)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random points (default 0)")
    _counterexample(parser)


def _kit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="the folder to create")
    parser.add_argument(
        "--target", metavar="RUNTIME", required=True, help="a runtime's name, or the path of a .toml file"
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="write test models only for features whose name matches this pattern",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=1e-4,
        metavar="L",
        help=(
            "largest absolute difference from the expected output at which an output still counts as "
            "correct (default 0.0001); use 0.01 for a runtime that computes in float16"
        ),
    )


def _kit_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder that rnn-lower kit wrote")
    parser.add_argument(
        "--results",
        metavar="RESULTS",
        help="a folder with the outputs of each test model, as CASE/NAME.npy or CASE.npz",
    )
    parser.add_argument(
        "--run",
        metavar="COMMAND",
        help="run this command for each test model, with {model}, {inputs} and {outputs} replaced by paths",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit in seconds for each run of the command (default 60)"
    )
    parser.add_argument("-o", "--output", metavar="TARGET.toml", help="write the proposed target to this file")


def _form(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--form", "form", choices=FORMS)
    _option(parser, "--target", "target", metavar="RUNTIME")


def _fixed_sizes(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--dim", "dims", metavar="NAME=SIZE", action="append")
    parser.add_argument(
        "--input-shape",
        dest="shapes",
        action="append",
        metavar="INPUT:SIZE,SIZE...",
        help="set all sizes of an input; accepts several INPUT:SIZE,SIZE... values",
    )


def _sizes_and_limits(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--opset", "opset", metavar="N", type=int)
    _fixed_sizes(parser)
    _option(parser, "--fold", "fold", action="store_true")
    _option(parser, "--max-nodes", "max_nodes", metavar="N", type=int)


def _stream_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="IN.onnx", nargs="+", help="the input model, followed by OUT.onnx; - means stdin or stdout"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.onnx", help="the output file, which may be IN.onnx; - means stdout"
    )
    _form(parser)
    parser.add_argument(
        "--time",
        metavar="NAME",
        help="the axis of the stream: the name of its symbolic size, or INPUT[AXIS]; for"
        " several inputs, separate the axes with commas",
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="K",
        help="set the chunk length to K frames and, unless --form is given, unroll the steps of a chunk",
    )
    parser.add_argument(
        "--keep-native",
        action="store_true",
        help="keep the recurrent nodes, and make their states inputs and outputs of the model",
    )
    parser.add_argument(
        "--set", dest="fixed", metavar="INPUT=VALUE", action="append", help="replace an input with a constant"
    )
    parser.add_argument(
        "--states",
        choices=("each", "packed"),
        default="each",
        help="each: one tensor per state; packed: all states of one element type in one tensor",
    )
    parser.add_argument(
        "--state-names",
        metavar="TEMPLATE",
        help="template for the names of state inputs and outputs, with the fields {node}, {state}, {end} and {index}",
    )
    parser.add_argument(
        "--reset", action="store_true", help="add an input `reset`, which resets the state of selected batch rows"
    )
    parser.add_argument(
        "--delay",
        action="store_true",
        help="if nodes need future frames, delay the outputs by the number of frames they need",
    )
    _option(parser, "--raise-loops", "raise_loops", action="store_true")
    _option(parser, "--legalize-all", "legalize_all", action="store_true")
    _sizes_and_limits(parser)
    _check_and_prove(
        parser,
        check="before writing, compare runs of the new model in random chunks with runs of the original on whole"
        " sequences",
        prove="write the model only if it is proved equal to the original, chunk by chunk",
    )
    _runs_and_tolerance(parser)


def _unstream_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="IN.onnx", nargs="+", help="the input model, followed by OUT.onnx; - means stdin or stdout"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.onnx", help="the output file, which may be IN.onnx; - means stdout"
    )
    parser.add_argument(
        "--state",
        dest="states",
        metavar="INPUT=OUTPUT",
        action="append",
        help="declare a state that the model's metadata does not list; accepts several INPUT=OUTPUT values",
    )
    parser.add_argument(
        "--time", metavar="INPUT[AXIS]", help="the axis of the frames; if omitted, each run of the model is one step"
    )
    _check_and_prove(
        parser,
        check="before writing, compare runs of the new model on random sequences with chunk-by-chunk runs of the"
        " original",
        prove="write the model only if it is proved equal to chunk-by-chunk runs of the original",
    )
    _runs_and_tolerance(parser)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx", help="the model; - means stdin")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the output file (default report.html, or node.svg with --svg); - means stdout",
    )
    parser.add_argument(
        "--svg",
        action="store_true",
        help="instead of a report, write an SVG drawing of one node before and after lowering",
    )
    parser.add_argument("--node", metavar="NAME", help="the name of the node that --svg draws")
    _form(parser)
    _sizes_and_limits(parser)
    parser.add_argument(
        "--inputs",
        metavar="X.npz",
        help="use the arrays in this file, stored under the names of the inputs, instead of sampled inputs",
    )
    _runs_and_tolerance(parser)


def _runs_and_tolerance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=int, metavar="N", help="number of runs, each with newly sampled inputs (default 3)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the sampled inputs (default 0)")
    parser.add_argument("--rtol", type=float, metavar="R", help=f"relative tolerance (default {RTOL:.3f})")
    parser.add_argument("--atol", type=float, metavar="A", help=f"absolute tolerance (default {ATOL:.5f})")


def _counterexample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--counterexample",
        metavar="X.npz",
        help="write to this file inputs for which the outputs differ, if there are any",
    )


def _option(parser: argparse.ArgumentParser, flag: str, name: str, **details: Any) -> None:
    """Add a flag for a field of `Options`, with its default and help."""
    field = next(field for field in dataclasses.fields(Options) if field.name == name)
    default = None if details.get("action") == "append" else field.default
    parser.add_argument(flag, dest=name, default=default, help=field.metadata["help"], **details)


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs",
        metavar="X.npz",
        help="use the arrays in this file, stored under the names of the inputs, instead of sampled inputs",
    )
    parser.add_argument(
        "--on", metavar="RUNTIME", help="run the lowered model on this runtime, which must be installed"
    )
    _runs_and_tolerance(parser)
    _counterexample(parser)


COMPARISON = ("inputs", "on", "runs", "seed", "rtol", "atol", "counterexample")
"""Arguments of a comparison of two models."""


def comparison(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a comparison that were set."""
    if getattr(arguments, "inputs", None) is not None and (getattr(arguments, "runs", None) or 1) != 1:
        raise RnnLowerError("--inputs gives the inputs of one run; drop --runs")
    return {name: value for name in COMPARISON if (value := getattr(arguments, name, None)) is not None}


def require(arguments: argparse.Namespace, flag: str, names: Iterable[str]) -> None:
    """Raise RnnLowerError for an argument that has no effect without `flag`, and for a number out of its range."""
    if not getattr(arguments, flag):
        for name in names:
            if getattr(arguments, name) is not None:
                raise RnnLowerError(f"--{name} needs --{flag}")
    check_numbers(**{name: value for name in LIMITS if (value := getattr(arguments, name, None)) is not None})


def one_value_each(argv: Sequence[str]) -> list[str]:
    """Repeat an option of `SEVERAL` before each of its further values; return the command line."""
    tokens: list[str] = []
    flag, is_first = "", False
    for token in argv:
        if token in SEVERAL:
            flag, is_first = token, True
        elif is_first:
            is_first = False
        elif flag and SEVERAL[flag].fullmatch(token):
            tokens.append(flag)
        else:
            flag = ""
        tokens.append(token)
    return tokens


SEVERAL = {
    "--dim": re.compile(r"[^-].*=\d+", re.ASCII),
    "--input-shape": re.compile(r"[^-].*:\d+(,\d+)*", re.ASCII),
    "--state": re.compile(r"[^-].*=.+(?<!\.onnx)"),
}
"""Options that accept several values, with the pattern of the values after the first."""


def resolve_files(arguments: argparse.Namespace) -> None:
    """Set `model` and `output` of a command that is written as IN OUT or IN -o OUT."""
    models = getattr(arguments, "models", None)
    if models is None or getattr(arguments, "out_dir", None) is not None:
        return
    arguments.is_positional = arguments.output is None
    if arguments.output is None and len(models) == 2:
        arguments.output = models.pop()
    if arguments.output is None and len(models) == 1:
        raise RnnLowerError(f"{models[0]}: no output file was specified; pass IN.onnx OUT.onnx")
    if len(models) > 1:
        several = "; use --out-dir FOLDER" if hasattr(arguments, "out_dir") else ""
        raise RnnLowerError(f"{len(models)} input models cannot share one output{several}")
    (arguments.model,) = models


def fixed_inputs(texts: Sequence[str]) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            fixed[name] = untrusted.loads(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise RnnLowerError(f"--set {text}: write INPUT=VALUE, e.g. --set sr=16000 or --set speed=[0.5,1]")
    return fixed


def named_states(texts: Sequence[str]) -> dict[str, str]:
    states = dict[str, str]()
    for text in texts:
        name, equals, output = text.partition("=")
        if not equals or not name or not output:
            raise RnnLowerError(f"--state {text}: write INPUT=OUTPUT, e.g. --state h=new_h")
        if states.setdefault(name, output) != output:
            raise RnnLowerError(f"--state {text}: input '{name}' already has the output '{states[name]}'")
    return states


def sizes(texts: Sequence[str], shapes: Sequence[str]) -> Dims:
    dims: dict[str, int | Sequence[int]] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not _is_size(size):
            raise RnnLowerError(
                f"--dim {text}: write NAME=SIZE or INPUT[AXIS]=SIZE with a whole number as SIZE, e.g. T=100"
            )
        _set(dims, name, int(size))
    for text in shapes:
        name, colon, sizes = text.rpartition(":")
        if not colon or not name or not all(map(_is_size, sizes.split(","))):
            raise RnnLowerError(f"--input-shape {text}: write INPUT:SIZE,SIZE..., e.g. --input-shape x:100,1,16")
        _set(dims, name, tuple(map(int, sizes.split(","))))
    return dims


def _set(dims: dict[str, int | Sequence[int]], name: str, size: int | Sequence[int]) -> None:
    if dims.setdefault(name, size) != size:
        raise RnnLowerError(f"'{name}' is set to two different sizes, {dims[name]} and {size}")


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal()
