"""A process that died without an exception is named, the first of several, with what killed it."""

from dataclasses import replace

import pytest

from factories import GIB, make_run, on_nodes
from failing import failed, report, said_goodbye, with_deaths, with_lost_machine
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import killed
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.model.sample import HostSample
from traceml.store.records import RunRecords

LOST_PEER = "Connection closed by peer [127.0.0.1]:14745"


@pytest.mark.parametrize(
    ("run", "severity", "words"),
    [
        pytest.param(failed(status=137), Severity.CRITICAL, "killed by SIGKILL", id="SIGKILL"),
        pytest.param(failed(status=139), Severity.CRITICAL, "killed by SIGSEGV", id="SIGSEGV"),
        pytest.param(failed(status=143), Severity.INFO, "ended by SIGTERM", id="asked to end"),
        pytest.param(
            said_goodbye(failed(status=130), 0), Severity.INFO, "ended by SIGINT", id="Ctrl-C"
        ),
        pytest.param(
            said_goodbye(failed(status=139), 0),
            Severity.WARNING,
            "after its training had ended",
            id="a crash at the very end",
        ),
        pytest.param(
            said_goodbye(with_deaths(failed(ranks=2), (0, 134), (1, 143)), 0, 1),
            Severity.WARNING,
            "Rank 0 was killed by SIGABRT after its training had ended.",
            id="a crash of one rank at the very end, below torchrun",
        ),
        pytest.param(
            said_goodbye(failed(status=137, ranks=2), 0, 1),
            Severity.WARNING,
            "The command was killed by SIGKILL after its training had ended.",
            id="the launcher at the very end",
        ),
        pytest.param(
            failed(status=None),
            Severity.WARNING,
            "no exception, signal or status",
            id="nobody saw the end",
        ),
        pytest.param(
            with_deaths(failed(ranks=2), (1, 137), (0, 143)),
            Severity.CRITICAL,
            "Rank 1 was killed by SIGKILL",
            id="one rank, then the launcher ended the other",
        ),
        pytest.param(
            with_deaths(failed(report(0, "RuntimeError", LOST_PEER), ranks=2), (1, None)),
            Severity.CRITICAL,
            "Rank 1 disappeared",
            id="the other lost its peer",
        ),
        pytest.param(
            with_deaths(failed(ranks=2), (1, 9), (0, 143)),
            Severity.CRITICAL,
            "Rank 1 left with exit status 9",
            id="one rank left",
        ),
        pytest.param(
            with_deaths(failed(ranks=2), (0, 143), (1, 143)),
            Severity.INFO,
            "ended by SIGTERM",
            id="all were asked to end",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity, words: str) -> None:
    finding = killed.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.KILLED, severity)
    assert words in finding.claim


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="ended well"),
        pytest.param(failed(status=0), id="left by os._exit(0)"),
        pytest.param(failed(status=9), id="left by os._exit(9)"),
        pytest.param(said_goodbye(failed(status=3), 0), id="sys.exit(3)"),
        pytest.param(
            said_goodbye(with_deaths(failed(ranks=2), (1, 3), (0, 143)), 0, 1),
            id="sys.exit(3) on one rank, and torchrun ended the other",
        ),
        pytest.param(failed(report(), status=1), id="an exception"),
        pytest.param(replace(make_run(), ending=None), id="goes on"),
        pytest.param(
            with_deaths(failed(report(1), ranks=2), (0, 143), (1, 1)), id="ended for another's sake"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert killed.check(gather(run)) is None


@pytest.mark.parametrize(
    ("host", "is_for_memory"),
    [
        pytest.param(
            HostSample(ram_used_bytes=31 * GIB, ram_total_bytes=32 * GIB), True, id="full"
        ),
        pytest.param(HostSample(ram_used_bytes=8 * GIB, ram_total_bytes=32 * GIB), False, id="not"),
        pytest.param(HostSample(), False, id="not measured"),
    ],
)
def test_a_kill_with_full_memory_is_the_kernels(host: HostSample, is_for_memory: bool) -> None:
    run = failed(status=137)
    run = replace(run, samples=tuple(replace(sample, host=host) for sample in run.samples))
    finding = killed.check(gather(run))
    assert finding is not None
    assert ("out-of-memory killer" in finding.action) is is_for_memory


def test_the_kernels_own_count_is_evidence() -> None:
    run = failed(status=137)
    counted = tuple(
        replace(sample, host=replace(sample.host, oom_kills=4 + place))
        for place, sample in enumerate(run.samples)
    )
    finding = killed.check(gather(replace(run, samples=counted)))
    assert finding is not None
    assert finding.evidence["oom_kills"] == 2
    assert "out-of-memory killer" in finding.action


@pytest.mark.parametrize(
    ("ranks", "machines", "words"),
    [
        pytest.param(
            3,
            3,
            "Machine node-c was lost with rank 2: nothing was heard of it after 08:00:56 UTC; its "
            "last known step is 200. node-a and node-b could not go on without it.",
            id="one rank each",
        ),
        pytest.param(16, 2, "Machine node-b was lost with ranks 8–15: nothing", id="eight each"),
    ],
)
def test_a_lost_machine_is_named_with_its_ranks(ranks: int, machines: int, words: str) -> None:
    left = ranks - ranks // machines
    said = [report(rank, "RuntimeError", LOST_PEER) for rank in range(left)]
    run = with_lost_machine(on_nodes(failed(*said, ranks=ranks), machines))
    finding = killed.check(gather(run))
    assert finding is not None
    assert (finding.severity, finding.nodes) == (Severity.CRITICAL, (run.nodes[-1].state.name,))
    assert finding.ranks == tuple(range(left, ranks))
    assert words in finding.claim
    assert "preemption" in finding.action and "os._exit" not in finding.action
    assert finding.evidence["last_known_step"] == 200


def test_every_finding_about_the_end_of_a_run_on_several_machines_names_them() -> None:
    for run in (failed(report(3), ranks=4), with_deaths(failed(ranks=4), (3, 137))):
        found = diagnose(gather(on_nodes(run, 2))).primary
        assert found.nodes == ("node-b",)
        assert found.claim.startswith("Rank 3 of node-b ")
