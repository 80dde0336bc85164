"""States as people want them: one tensor for each element type, names of a template; files beside the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from judge import close, run_onnxruntime
from layers import Stack, causal_conv, late_conv, lstm, running_sum
from onenode import Case, build
from streams import in_chunks

import rnn_lower
from rnn_lower import cli


def stack_of(*layers) -> onnx.ModelProto:
    s = Stack(np.random.default_rng(3))
    for layer in layers:
        layer(s)
    return s.model()


@pytest.mark.parametrize("how", [{}, {"step": 2}, {"keep_native": True}, {"reset": True}], ids=str)
@pytest.mark.parametrize("states", ["each", "packed"])
@pytest.mark.parametrize("names", [None, "{state}_{end}", "{index}.{node}.{end}"])
def test_any_arrangement_is_the_whole_run(states, names, how):
    model = stack_of(lstm, causal_conv, running_sum)
    made = rnn_lower.stream(model, axis="T", states=states, state_names=names, **how)
    onnx.checker.check_model(made, full_check=True)
    x = np.random.default_rng(0).uniform(-1, 1, (2, 12, 6)).astype(np.float32)
    (got,) = in_chunks(made, {"x": x}, [2] * 6).values()
    close([got], run_onnxruntime(model, {"x": x}))
    assert rnn_lower.prove_streaming(model, made, points=1)
    plan = rnn_lower.StreamingSession(made).plan
    assert len(plan.states) == (1 if states == "packed" else 4)
    if names == "{state}_{end}" and states == "each":
        assert [state.input for state in plan.states] == ["h_in", "c_in", "cache_in", "sum_in"]
    if states == "packed":
        assert plan.states[0].parts == ("LSTM5/h_in", "LSTM5/c_in", "Conv9/cache_in", "CumSum12/sum_in")


def test_a_warm_up_is_counted_in_a_tensor_of_its_own():
    model = stack_of(late_conv, lstm)
    made = rnn_lower.stream(model, axis="T", step=2, delay=True, states="packed")
    assert [value.name for value in made.graph.input] == ["x", "states/float32_in", "states/int64_in"]
    assert rnn_lower.prove_streaming(model, made, points=1)


def test_rows_of_packed_states_begin_anew():
    made = rnn_lower.stream(stack_of(lstm), axis="T", states="packed")
    session, x = rnn_lower.StreamingSession(made), np.ones((2, 3, 6), np.float32)
    first = session.run(x)["y"]
    session.reset(rows=[1])
    second = session.run(x)["y"]
    close([second[1]], [first[1]])
    assert np.abs(second[0] - first[0]).max() > 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state_names": "h_in"}, "the template must contain {end}"),
        ({"state_names": "{layer}_{end}"}, "may contain {node}, {state}, {end}, {index}"),
        ({"state_names": "s_{end}"}, "several states would be named 's_in'"),
        ({"states": "one"}, "it must be 'each' or 'packed'"),
    ],
)
def test_is_refused(options, words):
    with pytest.raises(rnn_lower.RnnLowerError, match=words.replace("{", r"\{")):
        rnn_lower.stream(stack_of(lstm), axis="T", **options)


def test_states_that_grow_are_not_packed():
    with pytest.raises(rnn_lower.UnsupportedError, match="changes from chunk to chunk, so the state cannot be packed"):
        rnn_lower.stream(stack_of(late_conv, lstm), axis="T", delay=True, states="packed")


def test_states_of_an_earlier_run_are_replaced(tmp_path):
    """Also where the model that they were of is gone."""
    onnx.save(stack_of(lstm), tmp_path / "in.onnx")
    command = ["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T", "-q"]
    assert cli.main(command) == 0
    assert cli.main(command) == 0
    (tmp_path / "out.onnx").unlink()
    assert cli.main(command) == 0
    with np.load(tmp_path / "out.state.npz") as states:
        assert sorted(states.files) == ["LSTM5/c_in", "LSTM5/h_in"]
    np.savez(tmp_path / "out.state.npz", mine=np.zeros(1))
    (tmp_path / "out.onnx").unlink()
    assert cli.main(command) == 2


def test_a_session_survives_a_chunk_that_failed():
    model, feeds = build(Case("GRU", optional=("initial_h",), outputs=("Y", "Y_h"), dynamic=True, T=4))
    made = rnn_lower.stream(model, axis="T")
    broken = iter([True])

    def run(given):
        if next(broken, False):
            raise RuntimeError("out of order")
        return run_onnxruntime(made, given)

    session = rnn_lower.StreamingSession(made, run=run)
    with pytest.raises(RuntimeError, match="out of order"):
        session.run(feeds)
    close([session.run(feeds)["Y"]], run_onnxruntime(model, feeds)[:1])


def test_a_final_state_that_is_no_output_becomes_one():
    model, feeds = build(Case("LSTM", optional=("initial_h", "initial_c"), outputs=("Y",), dynamic=True, T=6))
    made = rnn_lower.stream(model, axis="T")
    session = rnn_lower.StreamingSession(made)
    parts = [session.run({**(feeds if k == 0 else {}), "X": feeds["X"][k : k + 2]})["Y"] for k in (0, 2, 4)]
    close([np.concatenate(parts)], run_onnxruntime(model, feeds))


def test_kept_nodes_are_told(tmp_path, capsys):
    onnx.save(stack_of(lstm, lstm), tmp_path / "in.onnx")
    command = ["stream", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--time", "T", "--keep-native"]
    assert cli.main(command) == 0
    told = capsys.readouterr().out
    assert "2 recurrent nodes kept" in told
    assert "no RNN, GRU or LSTM node" not in told
