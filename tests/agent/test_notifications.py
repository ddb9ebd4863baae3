"""Who is notified of what, when, and that nobody who does not answer holds anything up."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from factories import make_run
from processes import PATIENCE_S, wait_until
from receivers import Receiver, closed_port, receiving
from traceml.agent import notify_targets
from traceml.agent.notifications import DEBOUNCE_S, FAILURE_GRACE_S, Notifier, notify_of_end
from traceml.agent.notify_targets import MAX_WAITING, Delivery, NotifyTarget, parse_target
from traceml.agent.processes import is_alive, process_of
from traceml.model.environment import NOTIFY, UI_URL
from traceml.model.errors import UsageError
from traceml.store import folder as folders
from traceml.summaries.build import build
from traceml.summaries.live_record import LiveIssue, LiveState
from traceml.summaries.record import FailureSummary, Summary

MANIFEST = replace(make_run().manifest, run_name="night run", hostname="node-1")
SUMMARY = build(make_run(), 0.0, "1")
SECRET = "T0/B0/verysecret"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anybody have to answer sooner than a busy machine does."""
    monkeypatch.setattr(notify_targets, "PAUSES_S", (0.0, 0.0))
    for timeout in ("WEBHOOK_TIMEOUT_S", "COMMAND_TIMEOUT_S", "END_TIMEOUT_S"):
        monkeypatch.setattr(notify_targets, timeout, PATIENCE_S)


def issue(kind: str, severity: str = "crit") -> LiveIssue:
    return LiveIssue(
        kind=kind,
        status=kind.replace("_", "-"),
        severity=severity,
        summary="what is wrong",
        action="what to do",
        section="step_time",
        since_step=7,
        ranks=(1,),
        evidence={"share": 0.5},
    )


def state(*issues: LiveIssue) -> LiveState:
    return LiveState(unix_s=1.0, step=50, findings=issues, summary=SUMMARY)


def notifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *targets: str
) -> tuple[Notifier, list[str]]:
    monkeypatch.setenv(NOTIFY, "\n".join(targets))
    told: list[str] = []
    return Notifier(tmp_path, MANIFEST, told.append), told


def events(hook: Receiver) -> list[tuple[str, str | None]]:
    found = [request.json for request in hook.received]
    return [(each["event"], each["finding"] and each["finding"]["kind"]) for each in found]


def test_a_critical_finding_is_told_once_with_its_evidence(tmp_path, monkeypatch, hook):
    monkeypatch.setenv(UI_URL, "https://traces.example.com/")
    told, _ = notifier(tmp_path, monkeypatch, f"{hook.url}/hook")
    for now_s in range(5):
        told.notify_of_new(state(issue("INPUT_BOUND"), issue("HOST_SYNC", "warn")), now_s)
    (request,) = hook.wait_for(1)
    assert request.headers["content-type"] == "application/json"
    sent = request.json
    assert (sent["format"], sent["event"], sent["is_over"]) == (1, "finding", False)
    assert sent["run"]["name"] == "night run" and sent["run"]["step"] == 50
    assert sent["finding"]["evidence"] == {"share": 0.5}
    assert (sent["finding"]["ranks"], sent["finding"]["since_step"]) == ([1], 7)
    assert sent["verdict"]["kind"] == SUMMARY.primary_diagnosis.kind
    assert sent["link"] == "https://traces.example.com/runs/night%20run"
    assert sent["text"] == (
        "TraceML: night run is INPUT-BOUND (critical, since step 7). what is wrong what to do "
        "https://traces.example.com/runs/night%20run"
    )


def test_what_comes_and_goes_is_told_again_only_after_a_while(tmp_path, monkeypatch, hook):
    told, _ = notifier(tmp_path, monkeypatch, hook.url)
    for now_s in range(0, int(DEBOUNCE_S), 30):
        told.notify_of_new(state(issue("HANG")) if now_s % 60 == 0 else state(), now_s)
    hook.wait_for(1)
    told.notify_of_new(state(issue("HANG")), DEBOUNCE_S + 1)
    hook.wait_for(2)
    told.finish(SUMMARY, 0)
    assert events(hook) == [("hang", "HANG"), ("hang", "HANG"), ("end", None)]


def test_a_failure_is_told_while_the_run_goes_on_and_left_to_its_end_otherwise(
    tmp_path, monkeypatch, hook
):
    told, _ = notifier(tmp_path, monkeypatch, hook.url)
    told.notify_of_new(state(issue("EXCEPTION")), 0.0)
    told.notify_of_new(state(issue("EXCEPTION")), FAILURE_GRACE_S - 1)
    assert hook.received == []
    told.notify_of_new(state(issue("EXCEPTION")), FAILURE_GRACE_S)
    hook.wait_for(1)
    assert events(hook) == [("failure", "EXCEPTION")]
    assert hook.received[0].json["is_over"] is False


def failed_summary() -> Summary:
    failure = FailureSummary(kind="OUT_OF_MEMORY", rank=3, summary="rank 3 ran out", action="halve")
    return Summary(duration_s=75.0, failure=failure)


def test_the_end_is_told_once_even_where_an_agent_began_anew(tmp_path, monkeypatch, hook):
    told, _ = notifier(tmp_path, monkeypatch, hook.url)
    told.notify_of_new(state(issue("HANG")), 0.0)
    hook.wait_for(1)
    again = Notifier(tmp_path, MANIFEST, lambda words: None)
    again.notify_of_new(state(issue("HANG")), 1.0)
    again.finish(failed_summary(), 1)
    assert events(hook) == [("hang", "HANG"), ("failure", "OUT_OF_MEMORY")]
    last = hook.received[-1].json
    assert (last["is_over"], last["exit_status"], last["finding"]["ranks"]) == (True, 1, [3])
    text = "TraceML: night run failed after 1 min 15 s, exit status 1. rank 3 ran out halve"
    assert last["text"] == text
    folders.write_manifest(tmp_path, MANIFEST)
    notify_of_end(tmp_path, 1, lambda words: None, os.environ)
    assert len(hook.received) == 2


def test_the_launcher_tells_of_the_end_where_no_agent_did(tmp_path, hook):
    folders.write_manifest(tmp_path, MANIFEST)
    notify_of_end(tmp_path, 0, lambda words: None, {NOTIFY: hook.url})
    assert events(hook) == [("end", None)]
    assert hook.received[0].json["verdict"] is None


def test_an_error_of_the_server_is_tried_again(hook):
    hook.statuses += [503, 429]
    delivery = Delivery(NotifyTarget(hook.url), "/")
    delivery.put(b"{}")
    delivery.wait(time.monotonic() + 60)
    assert (delivery.delivered, delivery.failed, len(hook.received)) == (1, 0, 3)


@pytest.mark.parametrize("status", [301, 404])
def test_a_redirect_or_a_refusal_is_not(hook, status: int):
    hook.statuses.append(status)
    delivery = Delivery(NotifyTarget(f"{hook.url}/{SECRET}"), "/")
    delivery.put(b"{}")
    delivery.wait(time.monotonic() + 60)
    assert len(hook.received) == 1
    assert delivery.report() == (
        "1 of 1 notifications to http://127.0.0.1/… could not be delivered: answered with "
        f"status {status}"
    )


def test_a_name_and_a_password_in_a_url_become_a_header(hook):
    url = hook.url.replace("://", "://me:p%40ss@")
    delivery = Delivery(NotifyTarget(url), "/")
    delivery.put(b"{}")
    delivery.wait(time.monotonic() + 60)
    assert hook.received[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert delivery.target.shown == "http://127.0.0.1/…"


@pytest.mark.slow  # it waits for a timeout, twice
def test_a_webhook_that_hangs_is_given_up_and_holds_up_no_other(tmp_path, monkeypatch, hook):
    monkeypatch.setattr(notify_targets, "WEBHOOK_TIMEOUT_S", 2.0)
    opener = notify_targets.opener()
    with receiving() as silent:
        silent.answers.clear()

        def post(request, timeout):  # the others may take longer: the machine may be busy
            is_silent = request.full_url.startswith(silent.url)
            return opener.open(request, timeout=timeout if is_silent else PATIENCE_S)

        monkeypatch.setattr(notify_targets, "opener", lambda: SimpleNamespace(open=post))
        told, words = notifier(
            tmp_path, monkeypatch, f"{silent.url}/{SECRET}", hook.url, closed_port()
        )
        told.notify_of_new(state(issue("HANG")), 0.0)
        told.finish(SUMMARY, 0)
    assert events(hook) == [("hang", "HANG"), ("end", None)]
    hung, refused = words
    assert "could not be delivered: did not answer within 2 s" in hung
    assert "Connection refused" in refused
    assert "verysecret" not in "".join(words)


def test_a_queue_is_bounded_and_counts_what_it_drops(hook):
    hook.answers.clear()
    delivery = Delivery(NotifyTarget(hook.url), "/")
    delivery.put(b"first")
    hook.wait_for(1)
    for number in range(MAX_WAITING + 3):
        delivery.put(b"%d" % number)
    delivery.put(b"last", is_last=True)
    hook.answers.set()
    delivery.wait(time.monotonic() + 60)
    assert [request.body for request in hook.received] == [b"first", b"last"]
    assert delivery.report() == (
        f"{MAX_WAITING + 3} of {MAX_WAITING + 5} notifications to http://127.0.0.1/… could not be "
        "delivered: too many were waiting"
    )


def test_the_end_waits_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(notify_targets, "END_TIMEOUT_S", 0.1)
    with receiving() as silent:
        silent.answers.clear()
        told, words = notifier(tmp_path, monkeypatch, silent.url)
        told.finish(SUMMARY, 0)
    assert words[0].endswith("1 of 1 notifications to http://127.0.0.1/… could not be delivered: "
                             "did not answer in time")  # fmt: skip


@pytest.mark.slow
def test_a_command_gets_the_json_where_the_run_was_started(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    delivery = Delivery(NotifyTarget("cat > got.json; exit 3"), str(tmp_path / "here"))
    monkeypatch.setenv(NOTIFY, "https://hooks.example.com/secret")
    delivery.put(json.dumps({"event": "end"}).encode())
    delivery.wait(time.monotonic() + 60)
    assert json.loads((tmp_path / "here" / "got.json").read_text()) == {"event": "end"}
    words = "1 of 1 notifications to the command cat could not be delivered: ended with status 3"
    assert delivery.report() == words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-program --now", "ended with status 127 (the shell found no such command)"),
        ("kill -9 $$", "was killed by SIGKILL"),
    ],
)
def test_why_a_command_failed_is_said_in_words(command, words):
    delivery = Delivery(NotifyTarget(command), "/")
    delivery.put(b"{}")
    delivery.wait(time.monotonic() + 60)
    assert delivery.report().endswith(f"could not be delivered: {words}")


@pytest.mark.slow
def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(notify_targets, "COMMAND_TIMEOUT_S", 1.0)
    said = tmp_path / "pid"
    said.touch()

    def said_pid() -> str:
        delivery = Delivery(NotifyTarget(f"echo $$ > {said}; sleep 600 & wait"), "/")
        delivery.put(b"{}")
        delivery.wait(time.monotonic() + 60)
        assert delivery.last_trouble == "did not end within 1 s"
        return said.read_text()

    command = process_of(int(wait_until(said_pid, "it has begun within its second")))
    wait_until(lambda: command is None or not is_alive(command), "the command is gone")


def test_the_number_of_a_command_that_has_ended_is_nobodys_to_kill(monkeypatch):
    killed: list[int] = []
    monkeypatch.setattr("os.killpg", lambda number, signal: killed.append(number))
    ended = subprocess.Popen(["true"])
    ended.wait()
    delivery = Delivery(NotifyTarget("true"), "/")
    delivery._process = ended  # its thread has not come to forget it
    delivery.wait(time.monotonic())
    assert killed == []


@pytest.mark.parametrize("given", ["", " ", "slack://hooks/secret", "https:///secret", "a\nb"])
def test_what_is_neither_a_webhook_nor_a_command_is_refused_without_its_secret(given: str):
    with pytest.raises(UsageError) as refused:
        parse_target(given)
    assert "secret" not in str(refused.value)


def test_a_variable_that_cannot_be_read_is_told_and_the_run_goes_on(tmp_path, monkeypatch):
    told, words = notifier(tmp_path, monkeypatch, "ftp://example.com/secret")
    told.notify_of_new(state(issue("HANG")), 0.0)
    told.finish(SUMMARY, 0)
    assert len(words) == 1 and "nobody is notified" in words[0] and "secret" not in words[0]


@pytest.mark.slow
def test_a_command_that_is_given_up_is_counted_once(monkeypatch, tmp_path):
    begun = tmp_path / "begun"
    delivery = Delivery(NotifyTarget(f"touch {begun}; sleep 600"), "/")
    delivery.put(b"{}")
    wait_until(begun.exists, "the command runs")
    delivery.wait(time.monotonic())
    wait_until(lambda: not delivery._is_busy, "its thread has seen that it was killed")
    assert (delivery.failed, delivery.delivered) == (1, 0)
    assert delivery.last_trouble == "did not answer in time"


@pytest.mark.parametrize(
    ("given", "is_slack"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", True),
        ("https://discord.com/api/webhooks/1/x/slack", True),
        ("https://hooks.example.com/slack-like", False),
        ("jq -r .text # /slack", False),
    ],
)
def test_who_reads_texts_as_slack_does(given: str, is_slack: bool):
    assert NotifyTarget(given).is_slack is is_slack


@pytest.mark.parametrize(
    ("path", "text"),
    [("/slack", "a &lt;lambda&gt; &amp; “more”"), ("/hook", "a <lambda> & “more”")],
)
def test_the_marks_of_slack_are_escaped_for_it_alone(hook, path: str, text: str):
    delivery = Delivery(NotifyTarget(f"{hook.url}{path}"), "/")
    said = {"event": "end", "text": "a <lambda> & “more”", "link": "http://ui/?a=1&b=<2>"}
    delivery.put(json.dumps(said).encode())
    delivery.wait(time.monotonic() + 60)
    assert hook.received[0].json == {**said, "text": text}
