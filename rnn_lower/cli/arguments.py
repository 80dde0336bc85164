"""What the command line takes: one parser, and texts that become values."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import rnn_lower
from rnn_lower import foreign
from rnn_lower.errors import RnnLowerError
from rnn_lower.options import FORMS, Dims, Options

Command = Callable[[argparse.Namespace], int]

DONE, DIFFERENT, BAD, UNFORESEEN = 0, 1, 2, 3
"""Exit codes."""


EXAMPLES: dict[str, tuple[str, ...]] = {
    "lower": (
        "in.onnx -o out.onnx",
        "in.onnx -o out.onnx --target tract --check",
        "in.onnx -o out.onnx --form unroll --dim time=20 --prove",
        "in.onnx other.onnx --out-dir lowered --jobs 2",
        "- -o - < in.onnx > out.onnx",
    ),
    "stream": ("in.onnx -o chunks.onnx --time time --check", "in.onnx -o step.onnx --time time --step 1 --dim batch=1"),
    "unstream": ("chunks.onnx -o whole.onnx --check", "step.onnx -o whole.onnx --state h=hn --time 'x[1]'"),
    "check": ("in.onnx out.onnx", "in.onnx out.onnx --runs 1 --rtol 1e-4 --json"),
    "prove": ("in.onnx out.onnx",),
    "inspect": ("in.onnx", "in.onnx --target opencv", "in.onnx --json"),
    "lint": ("out.onnx --target onnxruntime",),
    "targets": ("", "openvino"),
    "kit": ("-o kit --target portable --only 'GRU last*'",),
    "kit-report": ("kit --run 'python mine.py {model} {inputs} {outputs}' -o mine.toml", "kit --results results"),
    "report": ("in.onnx -o report.html", "in.onnx --target openvino", "in.onnx --svg -o node.svg"),
}
"""Commands to start from, shown by --help; a test runs each of them in a folder with models of these names."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        self.exit(BAD, f"{self.prog}: error: {message}\n")


def make_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """The parser of all commands; what is parsed has the one that does the work as `command`."""
    parser = _Parser(
        prog="rnn-lower", description="Rewrite RNN, GRU and LSTM nodes of ONNX models as primitive operators."
    )
    parser.add_argument("--version", action="version", version=f"rnn-lower {rnn_lower.__version__}")
    kinds = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = kinds.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.",
            epilog="examples:\n" + "".join(f"  rnn-lower {name} {example}\n" for example in EXAMPLES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        added.set_defaults(command=commands[name])
        added.add_argument("-q", "--quiet", action="store_true", help="print errors only, and what --json asks for")
        added.add_argument("-v", "--verbose", action="store_true", help="tell as well what becomes of each node")
        return added

    _lower_arguments(add("lower", "write a model without recurrent nodes"), commands["targets"])
    _stream_arguments(
        add("stream", "write a model that runs chunk by chunk, its state in and out"), commands["targets"]
    )

    _unstream_arguments(add("unstream", "write a model over whole sequences of one that runs chunk by chunk"))

    check = add("check", "compare two models")
    check.add_argument("original", metavar="A.onnx", help="- reads stdin")
    check.add_argument("lowered", metavar="B.onnx")
    _check_arguments(check)

    _prove_arguments(add("prove", "show without inputs and tolerance that two models are the same function"))

    inspect = add("inspect", "list recurrent nodes with their features")
    inspect.add_argument("model", metavar="IN.onnx", help="- reads stdin")
    inspect.add_argument("--target", metavar="RUNTIME", help="tell whether this runtime runs each node right as it is")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    lint = add("lint", "list the nodes that a runtime does not take, with the rule")
    lint.add_argument("model", metavar="IN.onnx")
    lint.add_argument("--target", metavar="RUNTIME", required=True, help="a name, or the path of a .toml file")
    _fixed_sizes(lint)
    lint.add_argument("--json", action="store_true", help="print JSON")

    targets = add("targets", "list the runtimes that --target knows, or explain one")
    targets.add_argument("target", nargs="?", metavar="RUNTIME", help="a name, or the path of a .toml file")
    targets.add_argument("--json", action="store_true", help="print JSON")
    _report_arguments(add("report", "write a page about a model's recurrent nodes"), commands["targets"])
    _kit_arguments(add("kit", "write models that show what a runtime takes, with inputs and results"))
    _kit_report_arguments(add("kit-report", "tell what a runtime made of a kit, and propose a file for --target"))
    return parser


def _lower_arguments(parser: argparse.ArgumentParser, list_targets: Command) -> None:
    parser.add_argument("models", metavar="IN.onnx", nargs="+", help="one, or several with --out-dir; - reads stdin")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", metavar="OUT.onnx", help="may be IN.onnx; - writes to stdout")
    where.add_argument("--out-dir", metavar="FOLDER", help="write each model there, under its own name")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="work on so many models at once")
    _form(parser, list_targets)
    _option(parser, "--op", "op_types", metavar="LSTM", action="append", type=str.upper)
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="lower only nodes of such names")
    parser.add_argument("--skip", action="append", default=[], metavar="GLOB", help="leave nodes of such names")
    _sizes_and_limits(parser)
    _option(parser, "--keep-native", "keep_native", action="store_true")
    _option(parser, "--as-function", "as_function", action="store_true")
    _option(parser, "--fuse-directions", "fuse_directions", action="store_true")
    _option(parser, "--legalize-all", "legalize_all", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare with the original before writing")
    parser.add_argument("--prove", action="store_true", help="write only what is proved to be the same function")
    _check_arguments(parser)


def _prove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("original", metavar="A.onnx")
    parser.add_argument("lowered", metavar="B.onnx")
    parser.add_argument("--points", type=int, default=2, metavar="N", help="how many random points are compared")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the points")
    _counterexample(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _kit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="one that is not there yet")
    parser.add_argument("--target", metavar="RUNTIME", required=True, help="a name, or the path of a .toml file")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only features of such names")
    parser.add_argument(
        "--limit", type=float, default=1e-4, metavar="L", help="largest difference that is right; 0.01 suits float16"
    )


def _kit_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the kit")
    parser.add_argument("--results", metavar="RESULTS", help="a folder with CASE/NAME.npy for each output, or CASE.npz")
    parser.add_argument(
        "--run", metavar="COMMAND", help="run this for each case, with {model}, {inputs} and {outputs} in its words"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for each case of --run")
    parser.add_argument("-o", "--output", metavar="TARGET.toml", help="write the proposed target")
    parser.add_argument("--force", action="store_true", help="replace the output even if it is read-only")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _form(parser: argparse.ArgumentParser, list_targets: Command) -> None:
    parser.add_argument("--force", action="store_true", help="replace the output even if it is read-only")
    _option(parser, "--form", "form", choices=FORMS)
    _option(parser, "--target", "target", metavar="RUNTIME", action=_Target, const=list_targets)


def _fixed_sizes(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--dim", "dims", metavar="NAME=SIZE", action="append")
    parser.add_argument(
        "--input-shape", dest="shapes", action="append", metavar="INPUT:SIZE,SIZE...", help="the same for all axes"
    )


def _sizes_and_limits(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--opset", "opset", metavar="N", type=int)
    _fixed_sizes(parser)
    _option(parser, "--fold", "fold", action="store_true")
    _option(parser, "--max-nodes", "max_nodes", metavar="N", type=int)


def _stream_arguments(parser: argparse.ArgumentParser, list_targets: Command) -> None:
    parser.add_argument("model", metavar="IN.onnx", help="- reads stdin")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True, help="may be IN.onnx; - writes to stdout")
    _form(parser, list_targets)
    parser.add_argument("--time", metavar="NAME", help="the symbolic size that is the stream, or INPUT[AXIS]")
    parser.add_argument("--step", type=int, metavar="K", help="chunks of K frames only, unrolled")
    parser.add_argument("--keep-native", action="store_true", help="leave the recurrent nodes, only give them states")
    parser.add_argument("--set", dest="fixed", metavar="INPUT=VALUE", action="append", help="make an input a constant")
    parser.add_argument("--states", choices=("each", "packed"), default="each", help="a tensor each, or one per type")
    parser.add_argument("--state-names", metavar="TEMPLATE", help="of {node}, {state}, {end} and {index}")
    parser.add_argument("--reset", action="store_true", help="add an input `reset` that sets rows back")
    parser.add_argument("--delay", action="store_true", help="let outputs come late where nodes look ahead")
    _sizes_and_limits(parser)
    parser.add_argument("--check", action="store_true", help="compare random chunks with whole runs before writing")
    parser.add_argument(
        "--prove", action="store_true", help="write only what is proved to be the original, chunk by chunk"
    )
    _runs_and_tolerance(parser)


def _unstream_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN.onnx", help="- reads stdin")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True, help="may be IN.onnx; - writes to stdout")
    parser.add_argument("--force", action="store_true", help="replace the output even if it is read-only")
    parser.add_argument(
        "--state",
        dest="states",
        metavar="INPUT=OUTPUT",
        action="append",
        help="what is fed back, if the model says not",
    )
    parser.add_argument("--time", metavar="INPUT[AXIS]", help="where the frames are; else each run is one step")
    parser.add_argument("--check", action="store_true", help="compare random sequences with chunks before writing")
    parser.add_argument("--prove", action="store_true", help="write only what is proved to be all chunks together")
    _runs_and_tolerance(parser)


def _report_arguments(parser: argparse.ArgumentParser, list_targets: Command) -> None:
    parser.add_argument("model", metavar="IN.onnx", help="- reads stdin")
    parser.add_argument("-o", "--output", metavar="FILE", help="report.html or node.svg without; - writes to stdout")
    parser.add_argument("--node", metavar="NAME", help="tell of this node only")
    parser.add_argument("--svg", action="store_true", help="only draw it, before and after, as an SVG file")
    _form(parser, list_targets)
    _sizes_and_limits(parser)
    parser.add_argument("--inputs", metavar="X.npz", help="arrays by input name, instead of sampled ones")
    parser.add_argument("--allow-unreached", action="store_true", help="agree even if some node has run with no inputs")
    _runs_and_tolerance(parser)


def _runs_and_tolerance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="how many sets of inputs are sampled")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled inputs")
    parser.add_argument("--rtol", type=float, default=1e-3, metavar="R", help="relative tolerance")
    parser.add_argument("--atol", type=float, default=1e-5, metavar="A", help="absolute tolerance")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _counterexample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--counterexample", metavar="X.npz", help="where the models differ, write inputs that show it; see --inputs"
    )


def _option(parser: argparse.ArgumentParser, flag: str, name: str, **details: Any) -> None:
    """A flag for a field of `Options`, with the default and the help that are said there."""
    field = next(field for field in dataclasses.fields(Options) if field.name == name)
    default = None if details.get("action") == "append" else field.default
    parser.add_argument(flag, dest=name, default=default, help=field.metadata["help"], **details)


class _Target(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        if value == "list":  # as it was spelled before there was a command for it
            raise SystemExit(self.const(namespace))
        setattr(namespace, self.dest, value)


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", metavar="X.npz", help="arrays by input name, instead of sampled ones")
    parser.add_argument(
        "--on", metavar="RUNTIME", help="compare what this installed runtime makes of the lowered model"
    )
    _runs_and_tolerance(parser)
    parser.add_argument("--allow-unreached", action="store_true", help="agree even if some node has run with no inputs")
    parser.add_argument(
        "--exact", action=argparse.BooleanOptionalAction, default=True,
        help="prove first, in exact arithmetic, what can be proved within a few seconds",
    )  # fmt: skip
    _counterexample(parser)


_CHECK_DEFAULTS = {
    "inputs": None, "on": None, "runs": 3, "seed": 0, "rtol": 1e-3, "atol": 1e-5, "allow_unreached": False,
    "exact": True, "counterexample": None,
}  # fmt: skip


def of_check_only(arguments: argparse.Namespace) -> Iterator[str]:
    """The flags that say how to compare, as far as they were set."""
    for name, default in _CHECK_DEFAULTS.items():
        if getattr(arguments, name) != default:
            yield "--no-exact" if name == "exact" else "--" + name.replace("_", "-")


def fixed_inputs(texts: Sequence[str]) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            fixed[name] = foreign.loads(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise RnnLowerError(f"--set {text}: write INPUT=VALUE, e.g. --set sr=16000 or --set speed=[0.5,1]")
    return fixed


def sizes(texts: Sequence[str], shapes: Sequence[str]) -> Dims:
    dims: dict[str, int | Sequence[int]] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not _is_size(size):
            raise RnnLowerError(f"--dim {text}: write NAME=SIZE or INPUT[AXIS]=SIZE, e.g. --dim T=100")
        _set(dims, name, int(size))
    for text in shapes:
        name, colon, sizes = text.rpartition(":")
        if not colon or not name or not all(map(_is_size, sizes.split(","))):
            raise RnnLowerError(f"--input-shape {text}: write INPUT:SIZE,SIZE..., e.g. --input-shape x:100,1,16")
        _set(dims, name, tuple(map(int, sizes.split(","))))
    return dims


def _set(dims: dict[str, int | Sequence[int]], name: str, size: int | Sequence[int]) -> None:
    if dims.setdefault(name, size) != size:
        raise RnnLowerError(f"'{name}' is given twice, as {dims[name]} and as {size}")


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal()
