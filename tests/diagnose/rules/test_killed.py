"""A process that died without an exception is named, the first of several, with what killed it."""

from dataclasses import replace

import pytest

from factories import GIB, make_run
from failing import failed, report, said_goodbye, with_deaths
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
