"""Nothing that a script logs can break its run, and no secret of it is written down."""

from __future__ import annotations

import json
import math
import signal
from threading import get_ident
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traceml
from ring_steps import write_steps
from traceml.agent.close import summarise
from traceml.model.metric_segments import split_segment
from traceml.store import logged
from traceml.store.record_file import RankFiles
from traceml.trace import messages
from traceml.trace import ring as rings
from traceml.trace.messages import MAX_TEXT


class Hostile:
    """Raises whatever it is asked."""

    def __str__(self):
        raise LookupError("no text")

    __repr__ = __float__ = __len__ = __iter__ = __str__


class BrokenMapping(dict):
    def items(self):
        raise LookupError("no items")


def params_of(traced):
    traced.finish()
    return logged.merge_params(traced.messages()).values


def metrics_of(traced):
    traced.finish()
    return {each.name: each for each in logged.reduce_metrics(traced.messages())}


@pytest.mark.parametrize("values", [None, "abc", [("lr", 1)], 3, {"lr"}, Hostile()])
def test_what_is_no_mapping_is_refused_in_one_line(traced, capfd, values):
    for _ in range(3):
        traceml.log_params(values)
        traceml.log_metrics(values)
    traceml.log_params({"lr": 0.1})
    assert params_of(traced) == {"lr": 0.1}
    said = capfd.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in said] == [" log_params", " log_metrics"]
    assert "pass a dict such as {'lr': 0.1}" in said[0]


def test_a_script_says_once_which_way_its_metrics_improve(traced):
    for step in range(3):
        traceml.log_metrics({"gap": 0.5}, step=step, higher_is_better=True)
        traceml.log_metrics({"a": 1.0, "b": 2.0}, step=step, higher_is_better={"a": False})
    found = metrics_of(traced)
    said = {name: each.higher_is_better for name, each in found.items()}
    assert said == {"gap": True, "a": False, "b": None}
    lines = [each for each in traced.messages() if each["kind"] == "directions"]
    assert len(lines) == 2


@pytest.mark.parametrize("wrong", ["up", 1, {"loss": "down"}, Hostile()])
def test_a_direction_that_is_none_is_refused_and_the_value_kept(traced, capfd, wrong):
    traceml.log_metrics({"loss": 0.5}, step=1, higher_is_better=wrong)
    (metric,) = metrics_of(traced).values()
    assert (metric.last, metric.higher_is_better) == (0.5, None)
    assert "higher_is_better=" in capfd.readouterr().err


def test_slips_are_dropped_values_and_no_failures_of_the_tracer(traced):
    for _ in range(1100):
        traceml.log_metrics(None)
        traceml.log_metrics({"x": 10**400, "loss": 1.0})
        traceml.log_params(BrokenMapping(a=1))
    assert traced.session.tracing
    found = metrics_of(traced)  # `finish` also asserts that no failure was counted
    assert found["loss"].count == 1100
    assert "x" not in found


def test_one_bad_value_costs_no_other(traced):
    traceml.log_metrics({"a": 1.0, "b": 10**400, "c": Hostile(), "d": "word", "e": 2})
    assert set(metrics_of(traced)) == {"a", "e"}


@pytest.mark.parametrize("step", [2**70, -(2**70), "soon", float("nan"), Hostile()])
def test_a_step_that_is_none_is_refused(traced, capfd, step):
    traceml.log_metrics({"loss": 1.0}, step=step)
    traceml.log_metrics({"loss": 2.0}, step=7)
    assert metrics_of(traced)["loss"].count == 1
    assert "log_metrics:" in capfd.readouterr().err


def test_a_path_with_a_nul_is_refused(traced, capfd):
    traceml.log_artifact("a\0b")
    traceml.log_artifact(None)
    traceml.log_artifact(__file__)
    traced.finish()
    named = [message for message in traced.messages() if message["kind"] == "artifact"]
    assert [message["path"] for message in named] == [__file__]
    assert "NUL" in capfd.readouterr().err


def test_a_long_parameter_is_cut_and_too_many_are_said(traced, capfd):
    traceml.log_params({"text": "x" * 1_000_000, "lr": 0.1})
    assert "the value of 'text' was cut" in capfd.readouterr().err
    traceml.log_params({f"name{number}": number for number in range(50_000)})
    found = params_of(traced)
    assert len(found["text"]) == MAX_TEXT
    assert found["lr"] == 0.1
    assert 1000 < len(found) < 50_000


def test_very_many_metrics_in_one_call_are_kept_as_far_as_they_fit(traced, capfd):
    traceml.log_metrics({f"name{number}": 1.0 for number in range(50_000)})
    assert "of 50,000 metrics" in capfd.readouterr().err
    assert len(metrics_of(traced)) > 1000


def test_parameters_that_contain_themselves_are_kept_as_text(traced):
    loop = {"lr": 0.1}
    loop["self"] = loop
    traceml.log_params({"config": loop})
    assert params_of(traced)["config"]["lr"] == 0.1


SECRETS = {
    "api_key": "sk-abcdefghijklmnop1234",
    "db_password": "hunter",
    "url": "postgres://bob:swordfish@db/x",
    "data": "https://host/blob?sv=1&sig=QWxhZGRpbg",
    "nested": {"wandb": {"token": "ffff0000"}, "list": ["hf_abcdefghijklmnopqrst"]},
    "config": "Config(lr=0.1, secret_key='opensesame')",
    "pin_password": 123456,
}
HIDDEN = ("sk-abc", "hunter", "swordfish", "QWxh", "ffff0000", "hf_abc", "opensesame", "123456")


def test_secrets_never_leave_the_process(traced):
    traceml.log_params({**SECRETS, "lr": 0.1, "token_count": 512, "sort_key": "loss"})
    traceml.log_artifact("s3://me:swordfish@bucket/model.pt")
    traced.finish()
    text = json.dumps(traced.messages())
    assert not [secret for secret in HIDDEN if secret in text]
    params = logged.merge_params(traced.messages()).values
    assert (params["lr"], params["token_count"], params["sort_key"]) == (0.1, 512, "loss")
    assert params["url"] == "postgres://db/x"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.tuples(anything, anything), max_size=20))
def test_whatever_is_logged_the_run_has_its_summary(tmp_path_factory, traced_in, calls):
    here = traced_in(tmp_path_factory.mktemp("run"))
    for values, other in calls:
        traceml.log_params(values)
        traceml.log_metrics(values, step=other)
        traceml.log_artifact(values, name=other)
    traceml.log_params({"lr": 0.1})
    here.finish()
    assert summarise(here.folder).params["lr"] == 0.1


def test_numbers_that_are_packed_read_like_those_written_as_text(traced):
    values = {"loss": 0.1, "epoch": 2, "gradient norm": float("inf"), "größe": -1e-300}
    traceml.log_metrics({**values, "rate": True}, step=3)  # a flag is no plain number: text
    traceml.log_metrics({**values, "rate": 1.0}, step=3)
    traceml.log_metrics({**values, "rate": 1}, step=3)  # all names are known by now: packed
    traced.finish()
    said = [each for each in traced.messages() if each["kind"] == "metrics"]
    assert [each["step"] for each in said] == [3, 3, 3]
    expected = {**values, "gradient norm": "inf", "rate": 1.0}
    assert [each["values"] for each in said] == [expected] * 3
    assert all(type(each["values"]["epoch"]) is float for each in said)


def test_a_number_that_cannot_be_packed_costs_no_other(traced):
    for _ in range(2):
        traceml.log_metrics({"fine": 1.0, "large": 10**400}, step=1)
    metrics = metrics_of(traced)
    assert (metrics.keys(), metrics["fine"].count) == ({"fine"}, 2)


def test_a_packed_number_without_a_step_gets_the_one_it_was_logged_in(traced):
    session = traced.session
    for step in range(3):
        write_steps(session, 1)
        traceml.log_metrics({"loss": float(step)})
    traced.finish()
    metrics = [each for each in traced.messages() if each["kind"] == "metrics"]
    said = [(each["step"], each["values"]["loss"]) for each in metrics]
    assert said == [(1, 0.0), (2, 1.0), (3, 2.0)]


@pytest.fixture
def signal_in_a_message(monkeypatch):
    """Has a handler run after the second piece of the next message is written."""
    before = signal.getsignal(signal.SIGUSR1)
    write_piece, pieces = rings._pack_message, []

    def write_piece_and_signal(*given):
        write_piece(*given)
        pieces.append(given)
        if len(pieces) == 2:
            signal.raise_signal(signal.SIGUSR1)

    def arm(handler):
        signal.signal(signal.SIGUSR1, handler)
        monkeypatch.setattr(rings, "_pack_message", write_piece_and_signal)

    yield arm
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_logs_in_the_middle_of_a_message_is_kept_with_it(
    traced, signal_in_a_message
):
    write_steps(traced.session, 1)
    for _ in range(2):
        traceml.log_metrics({"loss": 1.0}, step=1)

    def handle(*_):
        traceml.log_metrics({"loss": 2.0}, step=2)
        traceml.log_params({"caught": "y" * 1000})

    signal_in_a_message(handle)
    traceml.log_params({"long": "x" * 1000})
    traceml.log_metrics({"loss": 3.0}, step=3)
    assert params_of(traced) == {"long": "x" * 1000, "caught": "y" * 1000}
    said = [each["step"] for each in traced.messages() if each["kind"] == "metrics"]
    assert said == [1, 1, 2, 3]


def test_what_a_handler_logs_before_it_raises_is_kept(traced, signal_in_a_message):
    def handle(*_):
        traceml.log_params({"caught": 1})
        raise KeyboardInterrupt

    signal_in_a_message(handle)
    with pytest.raises(KeyboardInterrupt):
        traceml.log_params({"long": "x" * 1000})
    assert not traced.session.recorder.message_writers
    assert params_of(traced) == {"caught": 1}


class Mark:
    """A CUDA event, as far as values that come from the GPU ask one."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def query(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def await_from_gpu(session, mark, name="loss"):
    logging = session.messages
    logging._pending.append(('"step":1', 1, name, torch.tensor(2.0), mark))
    if logging.write_arrived not in session.looks:
        session.looks.append(logging.write_arrived)


def dropped_values(traced):
    (files,) = RankFiles.all_in(traced.folder)
    return files.head().counters["messages_dropped"]


def test_values_that_come_from_the_gpu_in_time_are_written_as_the_process_ends(traced, monkeypatch):
    monkeypatch.setattr(messages, "TIMEOUT_S", 60.0)
    traceml.log_params({"lr": 0.1})
    await_from_gpu(traced.session, Mark(False, False, True))
    assert metrics_of(traced)["loss"].last == 2.0
    assert not dropped_values(traced)


def test_values_that_come_too_late_are_counted_and_not_written_after_all(
    traced, capfd, monkeypatch
):
    monkeypatch.setattr(messages, "TIMEOUT_S", 0.0)
    traceml.log_params({"lr": 0.1})
    await_from_gpu(traced.session, Mark(False, True))
    await_from_gpu(traced.session, Mark(True), "accuracy")
    assert not metrics_of(traced)
    assert dropped_values(traced) == 2
    assert "the last 2 values had not come from the GPU" in capfd.readouterr().err


def test_values_of_a_gpu_that_fails_are_counted(traced, capfd):
    traceml.log_params({"lr": 0.1})
    await_from_gpu(traced.session, Mark(RuntimeError("CUDA error: launch failure")))
    with pytest.raises(RuntimeError, match="launch failure"):
        traced.session.messages.wait()
    assert not metrics_of(traced)
    assert dropped_values(traced) == 1
    assert "the last value had not come from the GPU" in capfd.readouterr().err


def test_a_look_that_another_thread_took_out_is_no_failure(traced):
    traceml.log_params({"lr": 0.1})
    await_from_gpu(traced.session, Mark(True))
    traced.session.looks.remove(traced.session.messages.write_arrived)
    assert metrics_of(traced)["loss"].last == 2.0


def test_slots_for_messages_are_told_of_last(tmp_path):
    told = []

    class Told:
        """A recorder that keeps in which order it was told."""

        def __setattr__(self, name, value):
            told.append((name, value))

    ring = rings.create([tmp_path], "made.ring")
    first, slots, counted_at = ring.message_place
    messages.Messages.use_ring(SimpleNamespace(_session=SimpleNamespace(recorder=Told())), ring)
    assert told[0] == ("message_slots", 0)
    assert set(told[1:-1]) == {("messages_at", first), ("messages_counted_at", counted_at)}
    assert told[-1] == ("message_slots", slots)


def test_no_metrics_are_no_message(traced):
    session = traced.session
    session.recorder.followed = get_ident()  # so that `recorder.c` takes what it can
    for _ in range(3):
        traceml.log_metrics({})
        traceml.log_metrics({"loss": 1.0})
    traced.finish()
    said = [each["values"] for each in traced.messages() if each["kind"] == "metrics"]
    assert said == [{"loss": 1.0}] * 3


def test_a_metric_has_values_by_segment(traced):
    for step in (1, 2):
        traceml.log_metrics({"accuracy": {"cat": 0.9, "dog": 0.8 - step}, "loss": 0.3}, step=step)
        traceml.log_metrics({"f1": 0.7, "recall": torch.tensor(0.5)}, step=step, segment="cat")
    found = metrics_of(traced)
    last = {name: (each.last, each.last_step, each.count) for name, each in found.items()}
    assert last == {
        "accuracy[cat]": (0.9, 2, 2),
        "accuracy[dog]": (-1.2, 2, 2),
        "f1[cat]": (0.7, 2, 2),
        "recall[cat]": (0.5, 2, 2),
        "loss": (0.3, 2, 2),
    }


def test_segments_have_the_direction_of_their_metric(traced):
    traceml.log_metrics({"gap": {"a": 1.0}, "b": {"x": 1.0}}, step=1, higher_is_better=True)
    traceml.log_metrics({"c": 1.0}, step=1, higher_is_better={"c": False}, segment="y")
    said = {name: each.higher_is_better for name, each in metrics_of(traced).items()}
    assert said == {"gap[a]": True, "b[x]": True, "c[y]": False}


def test_classes_may_be_numbers_and_segments_have_any_text(traced):
    traceml.log_metrics({"acc": {0: 0.5, 1: math.nan, "New [York] 🗽": 1e308, "a.b/c": math.inf}})
    found = {name: each.last for name, each in metrics_of(traced).items()}
    assert math.isnan(found.pop("acc[1]"))
    assert found == {"acc[0]": 0.5, "acc[New (York) 🗽]": 1e308, "acc[a.b/c]": math.inf}


def test_a_segments_name_can_be_taken_apart_however_long_it_is(traced):
    traceml.log_metrics({"m" * 300: {"s" * 300: 1.0, "é" * 99: 2.0}})
    for name in metrics_of(traced):
        assert len(name) <= messages.MAX_NAME
        assert split_segment(name) is not None


def test_segments_and_metrics_that_begin_alike_stay_apart(traced):
    for place in range(2):  # in calls of their own
        traceml.log_metrics({"m" * 200 + str(place): {"x": float(place)}})
        traceml.log_metrics({"acc": {"s" * 150 + str(place): float(place)}})
    found = metrics_of(traced)
    assert [each.count for each in found.values()] == [1] * 4
    assert {split_segment(name).metric for name in found if name.startswith("acc")} == {"acc"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"a": {"x": {"deep": 1.0}}}, "no further dict"),
        ({"a": {"": 1.0}}, "has no name"),
        ({"a": {None: 1.0}}, "has no name"),
        ({"a": {"x": "word"}}, "str is not a number"),
        ({"a": {Hostile(): 1.0}}, "cannot be read"),
        ({"a": BrokenMapping(x=1.0)}, "cannot be read"),
        ({"a": {"x": [0.1, 0.2]}}, "list is not a number"),
    ],
)
def test_a_bad_segment_is_refused_in_one_line_and_costs_no_other(traced, capfd, bad, said):
    for _ in range(2):
        traceml.log_metrics({**bad, "b": {"kept": 0.5}, "c": 1.0}, step=1)
    assert {name: each.count for name, each in metrics_of(traced).items()} == {"b[kept]": 2, "c": 2}
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line


def test_segments_that_are_written_alike_are_not_mixed(traced, capfd):
    traceml.log_metrics({"a": {1: 0.1, "1": 0.2}})
    found = metrics_of(traced)["a[1]"]
    assert (found.last, found.count) == (0.1, 1)
    assert "two segments are written alike" in capfd.readouterr().err


def test_a_segment_of_segments_is_refused(traced, capfd):
    traceml.log_metrics({"a": {"x": 0.1}, "b": 0.2}, segment="y")
    assert set(metrics_of(traced)) == {"b[y]"}
    assert "no further dict" in capfd.readouterr().err


def test_ten_thousand_segments_are_kept(traced, capfd):
    traceml.log_metrics({"accuracy": {f"class {n}": n / 10_000 for n in range(10_000)}}, step=1)
    found = metrics_of(traced)
    assert len(found) == 10_000
    assert found["accuracy[class 9999]"].last == 0.9999
    assert capfd.readouterr().err == ""
