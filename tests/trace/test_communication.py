"""Communication is measured where it happens: in collectives, and in DDP's backward."""

import gc
import inspect
import re
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp_module

from processes import AT_ONCE, TRACEML, run
from traceml.diagnose.engine import diagnose
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section
from traceml.model.phase import Phase
from traceml.store.load import load_run
from traceml.trace import collectives, current, ddp, hooks
from traceml.trace.ddp import FIRST_SAMPLES, LAST_GRADIENTS
from warm_jobs import WarmJob, run_warm

SCRIPT = Path(__file__).parents[1] / "distributed_training.py"
STEPS = 12
DELAY_MS = 40
"""Per rank of the job: the more ranks share the cores, the more each step is late by itself."""
CLEARLY = 0.7
"""Of the delay: the rest is noise, of a machine that is busy with other things as well."""

LATE = {
    "several backward passes": (2, 1, "--nested", "--backwards", "2"),
    "optimizer, four ranks": (4, 2, "--where", "optimizer"),
    "between phases, eight ranks": (8, 5, "--where", "between"),
    "forward of the rank that broadcasts": (2, 0, "--where", "forward", "--buffers"),
    "other parameters in every step": (2, 0, "--branches"),
    "accumulation and a hook": (2, 1, "--micro-batches", "2", "--own-hook"),
    "re-entrant checkpoints": (2, 1, "--recompute", "--static-graph"),
    "input, explicit collectives": (2, 0, "--where", "input", "--kind", "explicit"),
    "fsdp2": (2, 1, "--kind", "fsdp2"),
}
"""Jobs with a delay in one rank, in its backward if nothing else is said: how many ranks, the late
one, and what to do."""
HEALTHY = {"healthy": (2, -1)}
COMPARED = ("accumulation and a hook", "fsdp2")
"""These run a second time without tracing."""
BY_TORCHRUN = ("healthy",)
"""Runs under `traceml run`, which has torchrun start its ranks; the others call `traceml.init` and
fork their ranks, with torch imported once for all."""
ALL = {**LATE, **HEALTHY}


class Job:
    """What a job printed, and the facts that were recorded of it."""

    def __init__(self, name, traced, done):
        self.done = done
        self.delay_ms = delay_ms(name)
        assert done.status == 0, done.stderr
        self.learnt = sorted(re.findall(r"rank \d+: [0-9a-f]{64}", done.stdout))
        assert len(self.learnt) == ALL[name][0]
        self.facts = gather(load_run(done.folder)) if traced else None

    def column(self, name):
        return [getattr(rank.times, name) * 1e3 for rank in self.facts.ranks]


def delay_ms(name):
    return DELAY_MS * ALL[name][0]


def words_of(name):
    """What the script is told."""
    _, late, *words = ALL[name]
    return ["--steps", STEPS, "--late-rank", late, "--delay-ms", delay_ms(name), *words]


def launched(name, cwd):
    command = [TRACEML, "run", "--nproc-per-node", ALL[name][0], SCRIPT]
    return run([*command, "--args", *words_of(name)], cwd)


def forked(name, traced, cwd):
    words = [SCRIPT, *words_of(name), "--fork-ranks", ALL[name][0]]
    return WarmJob(words, cwd, "job" if traced else None)


@pytest.fixture(scope="module")
def jobs(request, tmp_path_factory):
    """The jobs that the selected tests ask for."""
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {each["job"] for each in chosen if "job" in each}
    asked = sorted(asked | {(name, True) for name, _ in asked})
    folders = {each: tmp_path_factory.mktemp("job") for each in asked}
    copies = [each for each in asked if each[0] not in BY_TORCHRUN]
    warm = run_warm([forked(*each, folders[each]) for each in copies], AT_ONCE)
    done = dict(zip(copies, warm, strict=True))
    done |= {each: launched(each[0], folders[each]) for each in asked if each not in done}
    return {each: Job(*each, finished) for each, finished in done.items()}


def traced_jobs(names):
    return pytest.mark.parametrize("job", [pytest.param((name, True), id=name) for name in names])


@traced_jobs(LATE)
def test_the_late_rank_is_the_one_that_works_and_the_others_wait(jobs, job):
    found = jobs[job]
    late = ALL[job[0]][1]
    own, exposed = found.column("own_s"), found.column("communication_s")
    delay_ms = found.delay_ms * CLEARLY
    for rank in range(len(own)):
        if rank != late:
            assert own[late] - own[rank] > delay_ms
            assert exposed[rank] - exposed[late] > delay_ms
    health = [rank.health for rank in load_run(found.done.folder).ranks]
    assert [each.failures for each in health] == [0] * len(own), health[0].last_failure


@pytest.mark.parametrize(
    ("job", "kind", "phase"),
    [
        pytest.param(
            ("optimizer, four ranks", True),
            Kind.COMPUTE_STRAGGLER,
            Phase.OPTIMIZER,
            id="four ranks",
        ),
        pytest.param(
            ("between phases, eight ranks", True),
            Kind.WAIT_STRAGGLER,
            Phase.RESIDUAL,
            id="eight ranks",
        ),
    ],
)
def test_of_many_ranks_the_late_one_is_named_with_its_cause(jobs, job, kind, phase):
    """Whatever else is said of a machine with fewer cores than ranks."""
    found = diagnose(jobs[job].facts).sections[Section.STEP_TIME]
    late = ALL[job[0]][1]
    assert (kind, phase, (late,)) in [(each.kind, each.phase, each.ranks) for each in found]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (("accumulation and a hook", True), {"parallelism": "DDP", "accumulation_steps": 2}),
        (
            ("re-entrant checkpoints", True),
            {"ddp_static_graph": True, "checkpoints_activations": True},
        ),
        (("fsdp2", True), {"parallelism": "FSDP2", "ddp_bucket_cap_mb": None}),
        (("input, explicit collectives", True), {"parallelism": ""}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_settings_say_how_the_ranks_work_together(jobs, job, expected):
    settings = jobs[job].facts.settings._asdict()
    assert {name: settings[name] for name in expected} == expected
    assert jobs[job].facts.uneven_settings == ()


@traced_jobs(HEALTHY)
def test_no_rank_stands_out_in_a_healthy_job(jobs, job):
    own = jobs[job].column("own_s")
    assert max(own) - min(own) < (1 - CLEARLY) * jobs[job].delay_ms
    assert min(jobs[job].column("communication_s")) > 0


@pytest.mark.parametrize("job", [pytest.param((name, False), id=name) for name in COMPARED])
def test_what_is_learnt_is_bit_for_bit_the_same_without_tracing(jobs, job):
    assert jobs[job].learnt == jobs[job[0], True].learnt


@traced_jobs(["optimizer, four ranks"])
def test_what_ddp_measured_itself_is_passed_on(jobs, job):
    ddp = jobs[job].facts.ddp
    parameters = 4 * (32 * 32 + 32)
    assert ddp.gradient_bytes == parameters * 4
    assert (ddp.buckets, ddp.has_hook) == (1, False)
    assert ddp.communication_s > 0
    assert jobs[job].facts.hidden_communication_s == ddp.overlap_s


@traced_jobs(["accumulation and a hook"])
def test_a_hook_of_the_users_is_known(jobs, job):
    assert jobs[job].facts.ddp.has_hook


# In this process, as a group of one


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def take_steps(model, optimizer, steps, between=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        between()
        optimizer.step()


def train(model, steps=4, between=lambda: None):
    take_steps(model, torch.optim.SGD(model.parameters(), lr=0.1), steps, between)


def patched_places():
    home = dist.distributed_c10d
    names = [name for name in collectives.COLLECTIVES if hasattr(home, name)]
    return {
        **{f"c10d.{name}": getattr(home, name) for name in names},
        **{f"dist.{name}": getattr(dist, name, None) for name in names},
        "wait": dist.Work.__dict__["wait"],
        "init": DistributedDataParallel.__dict__["__init__"],
        "buffers": DistributedDataParallel.__dict__["_sync_buffers"],
        "rebuild": dist.Reducer.__dict__["_rebuild_buckets"],
        "sink": ddp_module._DDPSink.__dict__["backward"],
    }


def hooks_on(model):
    found = [each._post_accumulate_grad_hooks for each in model.parameters()]
    return [len(hooks) if hooks else 0 for hooks in found]


def test_removing_the_tracer_leaves_torch_and_the_model_as_they_were(tmp_path, group):
    before = patched_places()
    hooks.install(current.start(tmp_path, None, None))
    during = patched_places()
    assert all(during[name] is not before[name] for name in before if before[name] is not None)
    model = DistributedDataParallel(make_net())
    train(model)
    assert sum(hooks_on(model)) == LAST_GRADIENTS
    current.end()
    assert patched_places() == before
    assert sum(hooks_on(model)) == 0


def test_a_collective_keeps_its_name_and_its_arguments(traced):
    original = dist.all_reduce.__wrapped__
    assert dist.all_reduce is dist.distributed_c10d.all_reduce
    assert inspect.signature(dist.all_reduce) == inspect.signature(original)
    assert dist.all_reduce.__name__ == "all_reduce"
    assert dist.all_reduce.__doc__ == original.__doc__


def test_only_the_parameters_whose_gradients_come_last_are_watched(traced, group):
    model = DistributedDataParallel(make_net())
    assert hooks_on(model) == [1, 1, 1, 1, 1, 1]
    train(model, steps=2)
    assert hooks_on(model) == [1, 1, 0, 0, 0, 0]


def test_a_ddp_model_from_before_tracing_is_found_inside_another(tmp_path, group):
    model = nn.Sequential(nn.Flatten(), DistributedDataParallel(make_net()))
    hooks.install(current.start(tmp_path, None, None))
    train(model)
    assert sum(hooks_on(model)) == LAST_GRADIENTS
    current.end()


def test_a_script_on_one_rank_has_no_communication(traced):
    train(make_net())
    assert set(traced.finish()["communication_ns"]) == {-1}


def test_accumulating_is_no_communication(traced, group):
    model = DistributedDataParallel(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take_steps(model, optimizer, 3)
    with model.no_sync():
        take_steps(model, optimizer, 3)
    take_steps(model, optimizer, 3)
    exposed = traced.finish()["communication_ns"]
    assert [took > 0 for took in exposed[:9].tolist()] == [True] * 3 + [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    "communicate",
    [
        pytest.param(lambda: dist.all_reduce(torch.ones(3)), id="a collective"),
        pytest.param(lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(), id="a wait"),
        pytest.param(lambda: dist.barrier(), id="a barrier"),
        pytest.param(lambda: dist.all_gather_object([None], "text"), id="collectives inside one"),
    ],
)
def test_what_a_step_communicates_is_charged_once(traced, group, communicate):
    train(make_net(), 4, communicate)
    steps = traced.finish()[1:4]
    exposed = steps["communication_ns"]
    assert (exposed > 0).all()
    phases = sum(steps[f"{name}_ns"] for name in ("forward", "backward", "optimizer"))
    assert (exposed + phases <= steps["body_ns"]).all()


def test_another_threads_collective_holds_nobody_up(traced, group):
    def aside():
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(3)))
        thread.start()
        thread.join()

    train(make_net(), 4, aside)
    assert set(traced.finish()["communication_ns"]) == {-1}


def test_a_collective_that_fails_still_fails_and_is_over(traced, group):
    def fail():
        with pytest.raises((TypeError, ValueError)):
            dist.all_reduce("no tensor")

    train(make_net(), 4, fail)
    assert (traced.finish()["communication_ns"][1:4] >= 0).all()


def test_a_failure_of_ours_never_reaches_a_collective(traced, group):
    class Broken:
        def is_on_its_stream(self):
            raise RuntimeError("ours")

    train(make_net(), 2)
    values = torch.ones(3)
    traced.session.recorder.gpu = Broken()
    dist.all_reduce(values)
    dist.all_reduce(values, async_op=True).wait()
    traced.session.recorder.gpu = None
    assert values.tolist() == [1, 1, 1]
    with pytest.raises(AssertionError, match="ours"):
        traced.finish()


def test_a_child_forked_during_a_collective_is_in_none(traced):
    train(make_net(), 2)
    communication = collectives.Communication(traced.session)

    @communication.timed
    def fork():
        was_open = communication._is_open
        traced.session.forget_parent()  # what Python calls in the child
        return was_open, communication._is_open

    assert fork() == (True, False)


def test_work_that_is_written_in_python_waits_as_ever(traced, group):
    class OwnWork(dist.Work):
        def __init__(self):
            super().__init__()

    train(make_net(), 2)
    with pytest.raises(RuntimeError, match="timed out"):
        OwnWork().wait(timedelta(milliseconds=1))


def test_a_collective_in_compiled_code_breaks_no_graph(traced, group):
    train(make_net(), 2)

    @torch.compile(backend="eager", fullgraph=True)
    def doubled(values):
        values = values * 2
        dist.all_reduce(values)
        return values

    assert doubled(torch.ones(2)).tolist() == [2, 2]


def test_ddps_own_statistics_are_read_rarely(traced, group, monkeypatch):
    reads = []
    original = DistributedDataParallel._get_ddp_logging_data

    def counted(model):
        reads.append(model)
        return original(model)

    monkeypatch.setattr(DistributedDataParallel, "_get_ddp_logging_data", counted)
    train(DistributedDataParallel(make_net()), FIRST_SAMPLES + 30)
    traced.finish()
    assert len(reads) == 1
    kinds = [message["kind"] for message in traced.messages()]
    assert kinds.count("ddp") == 1


def test_statistics_of_a_model_that_is_gone_are_not_overwritten_by_zeros(
    traced, group, monkeypatch
):
    monkeypatch.setattr(ddp, "STATISTICS_AFTER_NS", 0)  # read after every step
    train(DistributedDataParallel(make_net()), FIRST_SAMPLES + 5)
    gc.collect()  # the wrapper is gone, the script goes on
    train(make_net(), 3)
    traced.finish()
    read = [message for message in traced.messages() if message["kind"] == "ddp"]
    assert read
    assert all(message["gradient_bytes"] > 0 for message in read)
    assert all(message["buckets"] > 0 for message in read)


# FSDP2 on a GPU, whose gathers run on streams of their own


class OnlyStream:
    """A GPU on which everything runs on one stream, and nothing is marked."""

    def is_on_its_stream(self):
        return True

    def look_at_memory(self):
        return None


class ParamGroup:
    """What FSDP2 calls before it computes with a block's parameters, and after the last block."""

    def __init__(self):
        self._all_gather_result = self._post_reduce_event = None
        self.waits = []

    def wait_for_unshard(self):
        self.waits.append("parameters")

    def finalize_backward(self):
        self.waits.append("gradients")
        if self._post_reduce_event == "broken":
            raise ValueError("the script's")


def sharded_by(monkeypatch):
    """The class that stands in for FSDP2's own."""
    kind = type("FSDPParamGroup", (ParamGroup,), dict(vars(ParamGroup)))
    name = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(FSDPParamGroup=kind))
    return kind


@pytest.fixture
def param_group(traced, monkeypatch):
    train(make_net(), 1)  # which imports the real one
    kind = sharded_by(monkeypatch)
    traced.session.recorder.gpu = OnlyStream()
    communication = collectives.Communication(traced.session)
    communication.watch_sharded()
    communication.watch_sharded()  # once for each model
    yield kind()
    traced.session.recorder.gpu = None


@pytest.mark.parametrize(
    ("pending", "waits"),
    [
        pytest.param("_all_gather_result", "wait_for_unshard", id="parameters"),
        pytest.param("_post_reduce_event", "finalize_backward", id="gradients"),
    ],
)
def test_waiting_for_what_fsdp2_sends_is_communication(traced, param_group, pending, waits):
    def step():
        for is_pending in (None, object()):
            setattr(param_group, pending, is_pending)
            getattr(param_group, waits)()

    gc.disable()  # its pauses are events too
    step()  # and those before are written with the next event
    param_group.waits.clear()
    before = traced.session.recorder.written
    step()
    gc.enable()
    assert len(param_group.waits) == 2
    assert traced.session.recorder.written - before == 2  # the second call's begin and end


def test_what_fsdp2_raises_goes_on_and_is_over(traced, param_group):
    param_group._post_reduce_event = "broken"
    with pytest.raises(ValueError, match="the script's") as raised:
        param_group.finalize_backward()
    assert [frame.name for frame in raised.traceback][1:] == ["finalize_backward"]


def test_on_the_cpu_fsdp2_is_left_as_it_is(traced, monkeypatch):
    kind = sharded_by(monkeypatch)
    before = kind.wait_for_unshard
    collectives.Communication(traced.session).watch_sharded()
    assert kind.wait_for_unshard is before


# Exchanges


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(
            lambda: dist.all_to_all_single(torch.empty(6, 2), torch.ones(6, 2)), id="one tensor"
        ),
        pytest.param(
            lambda: dist.all_to_all([torch.empty(3, 4)], [torch.ones(3, 4)]), id="a list of them"
        ),
        pytest.param(
            lambda: dist.all_to_all_single(output=torch.empty(12), input=torch.ones(12)), id="named"
        ),
    ],
)
def test_what_an_exchange_brings_is_counted(traced, group, exchange):
    train(make_net(), 4, exchange)
    assert traced.finish()["received_elements"][1:4].tolist() == [12, 12, 12]


def test_an_exchange_of_a_spread_tensor_is_counted_and_compiles_in_one_graph(traced, group):
    from torch.distributed import _functional_collectives as functional

    train(make_net(), 2)  # from here on it is watched

    def exchange(values):
        return functional.all_to_all_single(values, [12], [12], dist.group.WORLD)

    train(make_net(), 3, lambda: exchange(torch.ones(12)).sum())
    compiled = torch.compile(lambda values: exchange(values * 2), backend="eager", fullgraph=True)
    assert compiled(torch.ones(12)).tolist() == [2.0] * 12
    assert traced.finish()["received_elements"][2:5].tolist() == [12, 12, 12]


def test_without_exchanges_nothing_is_counted(traced, group):
    train(make_net(), 4, lambda: dist.all_reduce(torch.ones(3)))
    assert set(traced.finish()["received_elements"].tolist()) == {-1}
