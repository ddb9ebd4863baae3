"""Balanced memory names the highest peak there is."""

from factories import GIB
from system_facts import with_peaks
from traceml.diagnose.rules import memory_balanced
from traceml.model.finding import Kind, Section, Severity


def test_must_fire_with_the_gpu_first_and_the_host_where_there_is_none() -> None:
    on_gpu = memory_balanced.check(with_peaks([{}, {"peak_reserved_bytes": 20 * GIB}]))
    assert (on_gpu.kind, on_gpu.section) == (Kind.BALANCED, Section.STEP_MEMORY)
    assert on_gpu.severity is Severity.INFO
    assert "GPU memory of a rank peaked at 20.0 GiB" in on_gpu.claim
    on_host = memory_balanced.check(with_peaks([{"peak_rss_bytes": 3 * GIB}], gpu=False))
    assert "host memory of a rank peaked at 3.00 GiB" in on_host.claim
