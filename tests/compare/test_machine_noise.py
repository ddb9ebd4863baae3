"""What two runs recorded about the machine widens the allowance of one run per side, with words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import ComparisonVerdict, to_json
from traceml.compare.terms import EarlierSpread, Terms
from traceml.compare.verdict_words import noise_words, within_both_words
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text

NAMES = ("a", "b")
ON_CPU = {"global": {"window": {"diagnosis_clock": "cpu"}}}
GIB = 2.0**30
QUIET = {"cpu_percent": 52.0, "cpu_other_percent": 2.0, "cpu_steal_percent": 0.0}
"""One core of two, nearly all of it the run's own."""
OWN = {"cpu_percent": 100.0, "workers_cpu_percent": 0.0, "workers": 0.0, "runqueue_percent": 0.5}


def section(average: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"global": {"average": average}, **more}


def made(
    step_ms: float = 100.0,
    system: dict[str, Any] | None = None,
    process: dict[str, Any] | None = None,
    clock: str = "cpu",
    **fields: Any,
) -> Summary:
    """A run of steady steps on a quiet machine, except for what is given."""
    kinds = fields.pop("kinds", ())
    step_time = {
        "global": {"window": {"diagnosis_clock": clock}},
        "issues": [{"kind": kind} for kind in kinds],
    }
    return run(
        {"step_time_ms": step_ms, "input_wait_ms": fields.pop("input_wait_ms", 0.0)},
        steps={"count": 400, "stdev_ms": step_ms / 100, "effective_count": 100.0},
        step_time=step_time,
        system=section({**QUIET, **(system or {})}),
        process=section({**OWN, **(process or {})}, metadata={"global_ranks_used": 1}),
        **fields,
    )


def verdict(a: Summary, b: Summary, terms: Terms | None = None) -> ComparisonVerdict:
    return compare(a, b, NAMES, terms).verdict


def kinds(found: ComparisonVerdict) -> list[str]:
    return [source.kind for source in found.noise.sources] if found.noise else []


GPU = {"gpu_util_percent": 98.0, "gpu_clock_percent": 95.0, "gpu_mem_bytes": 12 * GIB}
ON_GPU = {"gpu_mem_reserved_bytes": 11 * GIB}
ALONE_ON_GPU = {
    "system": GPU,
    "process": ON_GPU,
    "clock": "gpu",
    "meta": {"gpus_observed": 1, "world_size": 1},
}


def on_gpu(step_ms: float = 100.0, system: dict[str, Any] | None = None, **fields: Any) -> Summary:
    return made(step_ms, **{**ALONE_ON_GPU, "system": {**GPU, **(system or {})}, **fields})


@pytest.mark.parametrize(
    ("a", "b", "kind", "words"),
    [
        pytest.param(
            made(112, {"cpu_percent": 94.0, "cpu_other_percent": 44.0}),
            made(100, {"cpu_percent": 71.0, "cpu_other_percent": 21.0}),
            "host_load",
            "the host's CPU was 94% busy in A and 71% in B (by other programs: 44% and 21%)",
            id="other programs on the host",
        ),
        pytest.param(
            made(120, {"cpu_percent": 90.0, "cpu_other_percent": 40.0}, {"runqueue_percent": 30.0}),
            made(100),
            "cpu_wait",
            "waited for a CPU core 30% of the time in A and 0% in B",
            id="waiting for a core",
        ),
        pytest.param(
            made(200, {"cpu_percent": 100.0, "cpu_other_percent": 75.0},
                 {"cpu_percent": 50.0, "runqueue_percent": 40.0}),
            made(110, {"cpu_percent": 100.0, "cpu_other_percent": 55.0},
                 {"cpu_percent": 90.0, "runqueue_percent": 40.0}),
            "cpu_wait",
            "waited for a CPU core",
            id="less of the CPU for a run that was short of it",
        ),
        pytest.param(
            made(110, {"cpu_steal_percent": 8.0, "cpu_other_percent": 10.0}),
            made(100),
            "cpu_steal",
            "the hypervisor took 8% of the CPU in A and 0% in B",
            id="a busy hypervisor",
        ),
        pytest.param(
            made(115, {"cpu_throttled_percent": 15.0}),
            made(100, {"cpu_throttled_percent": 0.0}),
            "cpu_quota",
            "the CPU quota held the training back 15% of the time in A and 0% in B",
            id="a CPU quota",
        ),
        pytest.param(
            made(150, {"cpu_percent": 100.0, "cpu_other_percent": 60.0},
                 {"cpu_percent": 10.0, "workers_cpu_percent": 60.0, "workers": 2.0,
                  "runqueue_percent": 1.0, "workers_runqueue_percent": 35.0}, input_wait_ms=120.0),
            made(100, {"cpu_percent": 60.0, "cpu_other_percent": 2.0},
                 {"cpu_percent": 15.0, "workers_cpu_percent": 95.0, "workers": 2.0,
                  "runqueue_percent": 1.0, "workers_runqueue_percent": 1.0}, input_wait_ms=70.0),
            "cpu_wait",
            "waited for a CPU core",
            id="a worker that the step waits for",
        ),
        pytest.param(
            on_gpu(125, {"gpu_clock_percent": 74.0}),
            on_gpu(100),
            "gpu_clock",
            "the GPU's clock was at 74% of its maximum in A and at 95% in B",
            id="a throttled GPU",
        ),
        pytest.param(
            on_gpu(120, {"gpu_mem_bytes": 40 * GIB}),
            on_gpu(100),
            "gpu_neighbours",
            "other programs held 29.0 GiB of the GPUs' memory in A",
            id="a neighbour on the GPU",
        ),
    ],
)  # fmt: skip
def test_what_the_machine_did_is_no_verdict(a: Summary, b: Summary, kind: str, words: str) -> None:
    """Each was one before: the change is beyond what quiet runs differ by."""
    there, back = verdict(a, b), verdict(b, a)
    assert (there.status, back.status) == ("INCONCLUSIVE", "INCONCLUSIVE")
    assert kinds(there)[0] == kind
    assert there.noise is not None and there.noise.base_share in (0.03, 0.075)
    assert there.allowance_pct == pytest.approx(100 * there.noise.share)
    assert back.allowance_pct == pytest.approx(there.allowance_pct)
    assert words in there.why and "a difference of this size can come from that" in there.why
    assert "while the machine is otherwise idle" in there.next
    text = " ".join(comparison_text(compare(a, b, NAMES)).split())
    assert f"assuming {noise_words(there.noise.share)} instead of ±" in text


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(made(), made(110), id="two quiet machines"),
        pytest.param(
            made(process={"cpu_percent": 95.0}),
            made(110, {"cpu_percent": 98.0, "cpu_other_percent": 2.0}, {"cpu_percent": 190.0}),
            id="the run itself uses more of the CPU",
        ),
        pytest.param(
            made(process={"cpu_percent": 196.0, "runqueue_percent": 5.0}),
            made(110, {"cpu_percent": 100.0, "cpu_other_percent": 1.0},
                 {"cpu_percent": 198.0, "runqueue_percent": 45.0}),
            id="its own threads keep each other waiting",
        ),
        pytest.param(
            made(process={"workers_cpu_percent": 90.0, "workers": 4.0}),
            made(110, {"cpu_percent": 100.0, "cpu_other_percent": 1.0},
                 {"cpu_percent": 60.0, "workers_cpu_percent": 138.0, "workers": 8.0,
                  "runqueue_percent": 30.0, "workers_runqueue_percent": 40.0}),
            id="its own workers keep it waiting",
        ),
        pytest.param(
            on_gpu(), on_gpu(110, {"cpu_percent": 60.0, "cpu_other_percent": 30.0}),
            id="a busy host behind a GPU that always has work",
        ),
        pytest.param(
            made(system=GPU), made(110, {**GPU, "gpu_clock_percent": 50.0}),
            id="the clock of a GPU that is not used",
        ),
        pytest.param(
            on_gpu(system={"gpu_clock_percent": 70.0}),
            on_gpu(110, {"gpu_clock_percent": 70.0}),
            id="a GPU as slow on both sides",
        ),
        pytest.param(
            on_gpu(meta={"gpus_observed": 8, "world_size": 1}),
            on_gpu(110, {"gpu_mem_bytes": 60 * GIB}, meta={"gpus_observed": 8, "world_size": 1}),
            id="memory on GPUs that may be others'",
        ),
    ],
)  # fmt: skip
def test_a_real_change_is_still_found(a: Summary, b: Summary) -> None:
    found = verdict(a, b)
    assert (found.status, verdict(b, a).status) == ("REGRESSION", "IMPROVEMENT")
    assert found.allowance_pct < 9


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        pytest.param(
            made(120),
            made(100, {"cpu_percent": 94.0, "cpu_other_percent": 44.0}),
            id="other programs on the host",
        ),
        pytest.param(
            made(300, process={"cpu_percent": 8.0}),
            made(
                100,
                {"cpu_percent": 100.0, "cpu_other_percent": 60.0},
                {"cpu_percent": 50.0, "runqueue_percent": 52.0},
            ),
            id="waiting for a core",
        ),
        pytest.param(
            made(115, {"cpu_throttled_percent": 0.0}),
            made(100, {"cpu_throttled_percent": 10.0}),
            id="a CPU quota",
        ),
        pytest.param(on_gpu(110), on_gpu(100, {"gpu_clock_percent": 74.0}), id="a throttled GPU"),
        pytest.param(
            on_gpu(110), on_gpu(100, {"gpu_mem_bytes": 40 * GIB}), id="a neighbour on the GPU"
        ),
    ],
)
def test_what_slowed_the_faster_run_explains_nothing(slow: Summary, fast: Summary) -> None:
    """A run that had less of the machine and is faster all the same has become faster."""
    assert verdict(slow, fast).status == "IMPROVEMENT"
    assert verdict(fast, slow).status == "REGRESSION"


def test_noise_may_hide_a_change_either_way() -> None:
    """B had the busier host and took as long: it may well have become faster."""
    terms = Terms(history=EarlierSpread(0.001, 40), tolerance=0.05)
    busy = {"cpu_percent": 94.0, "cpu_other_percent": 44.0}
    assert verdict(made(100.1), made(100), terms).status == "NO CHANGE"
    assert verdict(made(100.1), made(100, busy), terms).status == "INCONCLUSIVE"
    assert verdict(made(100), made(100.1, busy), terms).status == "INCONCLUSIVE"


def test_a_large_change_is_found_on_a_busy_machine() -> None:
    busy = {"cpu_percent": 80.0, "cpu_other_percent": 30.0}
    found = verdict(made(100, busy), made(150, busy))
    assert found.status == "REGRESSION" and 7.5 < found.allowance_pct < 25


@pytest.mark.parametrize("kind", ["HOST_BOUND", "INPUT_BOUND"])
def test_a_gpu_run_that_waits_for_its_host_is_as_noisy_as_the_host(kind: str) -> None:
    load = {"cpu_percent": 90.0, "cpu_other_percent": 60.0}
    a, b = on_gpu(kinds=(kind,)), on_gpu(110, load, kinds=(kind,))
    assert verdict(a, b).status == "INCONCLUSIVE"


def test_a_file_of_an_earlier_version_is_judged_by_what_it_has() -> None:
    """The found case: nothing but the busy share and the run's own use of it."""
    old = {"cpu_other_percent": None, "cpu_steal_percent": None}
    own = {"cpu_percent": 100.0, "cpu_capacity_percent": 50.0, "runqueue_percent": None}
    a, b = (
        made(step_ms, {**old, "cpu_percent": busy}, own)
        for step_ms, busy in ((111.0, 94.0), (100.0, 71.0))
    )
    found = verdict(a, b)
    assert found.status == "INCONCLUSIVE"
    assert "the host's CPU was 94% busy in A and 71% in B (by other programs: 44% and 21%)" in (
        found.why
    )
    unknown = {**own, "cpu_percent": None, "cpu_capacity_percent": None}
    a, b = (
        made(step_ms, {**old, "cpu_percent": busy}, unknown)
        for step_ms, busy in ((111.0, 94.0), (100.0, 71.0))
    )
    assert "the host's CPU was 94% busy in A and 71% in B; a difference" in verdict(a, b).why


def test_a_foreign_file_and_a_bare_mean_keep_the_allowance_of_one() -> None:
    busy = {"cpu_percent": 94.0, "cpu_other_percent": 60.0}
    for fields in ({"producer": {"name": "another tool"}}, {}):
        a = msgspec.structs.replace(made(100, busy, **fields), steps=None)
        found = verdict(a, made(120))
        assert (found.allowance_pct, kinds(found)) == (25, [])


def test_a_run_against_itself_is_no_change_however_busy_the_machine() -> None:
    busy = made(100, {"cpu_percent": 100.0, "cpu_other_percent": 90.0}, {"runqueue_percent": 80.0})
    assert verdict(busy, busy).status == "NO CHANGE"


def test_what_history_teaches_is_widened_too() -> None:
    terms = Terms(history=EarlierSpread(0.01, 20))
    busy = {"cpu_percent": 94.0, "cpu_other_percent": 44.0}
    quiet, loaded = verdict(made(), made(110), terms), verdict(made(), made(110, busy), terms)
    assert (quiet.status, loaded.status) == ("REGRESSION", "INCONCLUSIVE")
    assert loaded.allowance_from == "history" and loaded.allowance_pct > quiet.allowance_pct


def test_memory_does_not_depend_on_the_load() -> None:
    busy = {"cpu_percent": 94.0, "cpu_other_percent": 44.0}
    a, b = made(peak_bytes=1e9), made(100, busy, peak_bytes=2e9)
    found = verdict(a, b, Terms(metric="peak_memory"))
    assert (found.status, kinds(found)) == ("REGRESSION", [])


def paced(step_ms: float, second_half: float) -> Summary:
    """A run whose second half is so many times as slow as its first."""
    made_run = made(step_ms)
    first_ms = 2 * step_ms / (1 + second_half)
    blocks = [first_ms] * 16 + [first_ms * second_half] * 16
    wobble = [block * (1 + 0.002 * (-1) ** place) for place, block in enumerate(blocks)]
    steps = msgspec.structs.replace(made_run.steps, block_steps=10, block_means_ms=tuple(wobble))
    return msgspec.structs.replace(made_run, steps=steps)


def test_a_pace_that_changed_in_one_run_alone_is_the_machines() -> None:
    found = verdict(paced(100, 1.0), paced(112, 1.5))
    assert found.status == "INCONCLUSIVE" and kinds(found) == ["unsteady"]
    assert found.noise is not None and found.noise.sources[0].summary == (
        "the step time drifted within the runs (standard deviation between eighths of a run: 0% in "
        "A, 20% in B)"
    )


def test_a_pace_that_changes_alike_in_both_runs_is_their_own() -> None:
    found = verdict(paced(100, 1.1), paced(120, 1.1))
    assert (found.allowance_pct, kinds(found)) == (7.5, [])


def test_noise_of_more_than_the_whole_step_is_told_as_a_factor() -> None:
    """ "±489%" reads as if a step could get 489 % shorter."""
    comparison = compare(paced(100, 1.0), paced(200, 40.0), NAMES)
    found = comparison.verdict
    assert found.status == "INCONCLUSIVE" and found.allowance_pct > 100
    factor = f"a factor of {1 + found.allowance_pct / 100:.3g}"
    assert f"within the assumed run-to-run noise of {factor}" in found.why
    assert f"only a change beyond {factor}" in found.next
    assert f"assuming run-to-run noise of {factor} instead of ±7.5%" in " ".join(
        comparison_text(comparison).split()
    )


def test_a_change_that_only_both_kinds_of_noise_together_explain_says_so() -> None:
    wild = {"count": 400, "stdev_ms": 20.0, "effective_count": 100.0}
    a, b = (run({"step_time_ms": ms}, steps=wild, step_time=ON_CPU) for ms in (100.0, 108.0))
    found = verdict(a, b)
    low, high = found.ratio_interval or (0.0, 0.0)
    assert found.status == "INCONCLUSIVE" and 1 < low < 1.08 < high
    assert "within the ±9.43% of step-to-step variation and run-to-run noise together" in found.why
    assert within_both_words(1.86).startswith(", within a factor of 2.86 of step-to-step")


def on_virtual(summary: Summary) -> Summary:
    hardware = {"lineage": {"hardware": {"virtual": True}}}
    return msgspec.structs.replace(summary, lineage=run(**hardware).lineage)


def test_the_neighbours_of_a_virtual_machine_are_on_no_record() -> None:
    found = verdict(on_virtual(made()), on_virtual(made(115)))
    assert (found.status, kinds(found)) == ("INCONCLUSIVE", ["virtual_cpu"])
    assert "they ran on a virtual machine, whose neighbours' load is not recorded" in found.why
    assert found.next.startswith("Run both sides again: one run each"), "nothing to make idle"
    assert verdict(on_virtual(made()), on_virtual(made(150))).status == "REGRESSION"
    assert verdict(on_virtual(on_gpu()), on_virtual(on_gpu(110))).status == "REGRESSION"


def test_earlier_runs_show_what_the_neighbours_of_a_virtual_machine_do() -> None:
    terms = Terms(history=EarlierSpread(0.01, 20))
    found = verdict(on_virtual(made()), on_virtual(made(110)), terms)
    assert (found.status, kinds(found)) == ("REGRESSION", [])


shares = st.floats(0, 100)
hosts = st.fixed_dictionaries(
    {
        "cpu_percent": st.none() | shares,
        "cpu_other_percent": st.none() | shares,
        "cpu_steal_percent": st.none() | shares,
        "cpu_throttled_percent": st.none() | shares,
        "gpu_clock_percent": st.none() | shares,
        "gpu_util_percent": st.none() | shares,
    }
)
processes = st.fixed_dictionaries(
    {
        "cpu_percent": st.none() | st.floats(0, 6400),
        "workers_cpu_percent": st.none() | st.floats(0, 6400),
        "runqueue_percent": st.none() | shares,
        "workers_runqueue_percent": st.none() | shares,
    }
)
machines = st.tuples(hosts, processes)


STOPPED_CLOCK = ({"gpu_clock_percent": 1e-311}, {})
"""What only a damaged file says: so far from any other run that a ratio overflows."""


@settings(max_examples=100, deadline=None)
@given(machines, machines, st.sampled_from(["cpu", "gpu"]))
@example(STOPPED_CLOCK, ({"gpu_clock_percent": 100.0}, {}), "gpu")
def test_swapping_the_runs_changes_no_allowance_and_nothing_makes_it_smaller(
    one: tuple[dict[str, Any], dict[str, Any]],
    other: tuple[dict[str, Any], dict[str, Any]],
    clock: str,
) -> None:
    a, b = made(100, *one, clock=clock), made(104, *other, clock=clock)
    there, back = verdict(a, b), verdict(b, a)
    assert there.allowance_pct == pytest.approx(back.allowance_pct)
    assert kinds(there) == kinds(back)
    assert there.allowance_pct >= (3 if clock == "gpu" else 7.5)
    msgspec.json.decode(to_json(compare(a, b, NAMES)))


def side(loads: list[float], step_ms: float) -> list[Summary]:
    return [
        made(step_ms + place, {"cpu_percent": 50 + load, "cpu_other_percent": load})
        for place, load in enumerate(loads)
    ]


def warned(a: list[Summary], b: list[Summary]) -> list[str]:
    return [said for said in compare_groups(a, b, NAMES).warnings if "busier host" in said]


def test_groups_whose_hosts_were_unlike_are_warned_of() -> None:
    busy, quiet = side([40.0, 45.0], 110), side([2.0, 3.0], 100)
    (said,) = warned(busy, quiet)
    assert said.startswith(
        "Every run of A had a busier host than any run of B (other programs kept 40–45% of its CPU "
        "busy in A and 2–3% in B)"
    )
    assert said.endswith("or more in step time can come from that.")
    assert "Every run of B had a busier host than any run of A" in warned(quiet, busy)[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param([40.0, 2.0], [3.0, 45.0], id="load on both sides"),
        pytest.param([40.0, 10.0], [2.0, 3.0], id="one run of A hardly busier"),
        pytest.param([6.0, 5.0], [2.0, 3.0], id="too little to matter"),
    ],
)
def test_groups_that_were_alike_are_not(a: list[float], b: list[float]) -> None:
    assert warned(side(a, 110), side(b, 100)) == []


def test_nothing_is_said_of_groups_that_recorded_nothing() -> None:
    bare = [run({"step_time_ms": ms}) for ms in (100.0, 101.0)]
    assert warned(side([40.0, 45.0], 110), bare) == []
