"""The recorded steps in words: in the text of a run, and on its page."""

from msgspec import structs

from traceml.figures.step_traces import step_traces_part
from traceml.summaries.record import Summary
from traceml.summaries.step_traces import KinetoSummary, StepTraceSummary
from traceml.text.step_traces import MAX_FILES, choice_words, file_words
from traceml.text.summary import summary_text

FOUND = KinetoSummary(
    asked=2,
    recorded=12,
    traces=(
        StepTraceSummary("kineto-rank-0-step-312-pid-7.json.gz", 0, 312, "typical", 28.3, 40_000),
        StepTraceSummary("kineto-rank-0-step-907-pid-7.json.gz", 0, 907, "worst", 91.0, 41_000),
    ),
    recorded_median_ms=29.0,
    median_ms=28.1,
    slowest_step=640,
    slowest_ms=122.0,
    cost_ms=1234.0,
)


def test_how_the_steps_were_chosen_is_said():
    assert choice_words(FOUND) == [
        "Typical: step 312, 28.3 ms, the median of the others 28.1 ms.",
        "Worst of the 12 recorded: step 907, 91.0 ms.",
        "The slowest step that was not recorded is 640, 122.0 ms.",
        "Recording took 1,234.0 ms from training; a recorded step takes 29.0 ms (median); recorded "
        "steps and their neighbours are in no mean.",
    ]


def test_the_text_lists_the_files_and_how_to_open_them():
    text = summary_text(Summary(kineto=FOUND))
    assert "Traces   Typical: step 312" in text and "ui.perfetto.dev" in text
    assert "kineto-rank-0-step-907-pid-7.json.gz" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_that_kept_no_trace_says_why():
    text = summary_text(Summary(kineto=KinetoSummary(asked=2, notes=("no room",))))
    assert "No trace was kept of the 2 steps asked for." in text and "No room." in text
    assert "perfetto" not in text


def test_of_several_ranks_the_rank_is_named_and_many_files_are_counted():
    traces = tuple(
        StepTraceSummary(f"{rank}.json.gz", rank, 50 + rank, "typical", 5.0, 1)
        for rank in range(MAX_FILES + 3)
    )
    many = structs.replace(FOUND, traces=traces)
    assert "step 51 of rank 1, 5.0 ms" in choice_words(many)[0]
    assert choice_words(many)[0].endswith("and 7 more, the median of the others 28.1 ms.")
    assert file_words(many)[-1] == "and 3 more files"


def test_the_page_has_a_link_to_every_file():
    part = step_traces_part(FOUND, "a run")
    (table,) = part.tables
    assert [row.cells[0] for row in table.rows] == [each.file for each in FOUND.traces]
    assert table.rows[0].link == "/runs/a%20run/file?name=kineto-rank-0-step-312-pid-7.json.gz"
    assert "ui.perfetto.dev" in table.note
    assert step_traces_part(None, "a run") is None
