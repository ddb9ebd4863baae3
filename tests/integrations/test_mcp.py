"""`traceml mcp` through the SDK's own client over stdio: one server, all tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories import make_run
from run_folders import write_run
from traceml.api.agent_tools import MAX_ANSWER_CHARS, AgentTools
from traceml.cli.mcp import TOOL_NAMES
from traceml.model.errors import TraceMLError

pytest.importorskip("mcp.server.mcpserver")

Call = Callable[..., Awaitable[Any]]
SOURCE = "".join(f"line_{number} = {number}\n" for number in range(1, 41))
TOKEN = "sk-" + "a1B2" * 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mcp")
    (place / "code").mkdir()
    (place / "code" / "train.py").write_text(SOURCE.replace("line_18 = 18", f'KEY = "{TOKEN}"'))
    (place / "secret.py").write_text("password = 'hunter2'\n")
    for name, forward_ms in (("before", 10.0), ("after", 30.0)):
        run = make_run(ranks=2, gpu=True, forward_ms=forward_ms)
        manifest = replace(run.manifest, working_folder=str(place / "code"))
        write_run(place / "logs" / name, replace(run, manifest=manifest))
    point_at(place / "logs" / "after", "train.py", "../secret.py", "/etc/passwd")
    write_run(place / "logs" / "cut-short", make_run(steps=20), is_over=False)
    return place


def point_at(folder: Path, *files: str) -> None:
    """Make a run's summary name line 20 of these files, as sampled stacks do."""
    path = folder / "final_summary.json"
    summary = json.loads(path.read_text())
    sampled = {"share": 0.5, "share_low": 0.4, "share_high": 0.6, "looks": 50}
    places = [{"function": "main", "file": file, "line": 20, **sampled} for file in files]
    summary["user_time"] = {"looks": 100, "phases": {"input": {"looks": 100, "places": places}}}
    path.write_text(json.dumps(summary))


def asked(place: Path, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """Start the server as an agent does, and ask it something."""
    import anyio
    from mcp import Client, StdioServerParameters

    words = ["-m", "traceml", "mcp", "--logs-dir", str(place / "logs")]
    server = StdioServerParameters(
        command=sys.executable, args=[*words, "--code-dir", str(place / "code")], cwd=str(place)
    )

    async def session() -> Any:
        with anyio.fail_after(120):
            async with Client(server) as client:
                return await ask(client)

    return anyio.run(session)


@pytest.mark.slow  # it starts the server
def test_an_agent_finds_the_slow_run_its_cause_and_its_code(place: Path):
    async def ask(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == set(TOOL_NAMES)
        assert all(
            tool.annotations.read_only_hint and len(tool.description) > 60 for tool in listed
        )

        async def result(tool: str, **arguments: Any) -> Any:
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content
            assert json.loads(answer.content[0].text) == answer.structured_content
            return answer.structured_content

        runs = await result("list_runs", filter="step_time_ms > 50", columns="name,step_time_ms")
        assert [run["name"] for run in runs["result"]["folders"][0]["runs"]] == ["after"]
        verdict = (await result("run_verdict", run="after"))["result"]
        assert verdict["primary_diagnosis"]["kind"] == "COMPUTE_BOUND"
        assert verdict["mean_step"]["forward_ms"] == pytest.approx(30.0, rel=0.05)
        findings = (await result("run_findings", run="after", section="step_time"))["result"]
        assert findings["findings"]["step_time"][0]["action"]
        compared = (await result("compare_runs", a=["before"], b=["after"]))["result"]
        assert compared["verdict"]["status"] == "REGRESSION"
        part = await result(
            "summary_section", run="after", path="step_time.global.average.forward_ms"
        )
        assert part["result"]["value"] == verdict["mean_step"]["forward_ms"]
        code = await result("finding_code", run="after")
        shown, *others = code["result"]["places"]
        assert "> 20: line_20 = 20" in shown["code"] and len(shown["code"]) == 9
        assert TOKEN not in json.dumps(code), "a secret in the code is masked"
        assert [place["code"] for place in others] == [None, None], (
            "no file outside the code's folder"
        )
        assert "hunter2" not in json.dumps(code) and "root:" not in json.dumps(code)

        wrong = await client.call_tool("run_layers", {"run": "after"})
        assert wrong.is_error and "--profile=deep" in wrong.content[0].text
        wrong = await client.call_tool("run_verdict", {"run": "aftr"})
        assert wrong.is_error and "did you mean after?" in wrong.content[0].text

    asked(place, ask)


@pytest.mark.parametrize("run", ["../logs/after", "/etc", "..", "", ".", "after/..", "a\0b"])
def test_a_name_cannot_leave_the_logs_folder(run: str, place: Path):
    tools = AgentTools([place / "logs"], place / "code")
    for ask in (tools.verdict, tools.code, tools.layers):
        with pytest.raises(TraceMLError):
            ask(run)
    with pytest.raises(TraceMLError):
        tools.compare(["before"], [run])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda tools: tools.verdict("cut-short"), "traceml recover"),
        (lambda tools: tools.compare(["before"], ["cut-short"]), "no summary"),
        (lambda tools: tools.compare([], ["after"]), "at least one run"),
        (lambda tools: tools.summary_part("after", "step_time.globl"), "did you mean global?"),
        (lambda tools: tools.summary_part("after", "step_time.issues.9"), "is a list of"),
        (lambda tools: tools.summary_part("after", "step_time.issues.²"), "is a list of"),
        (lambda tools: tools.summary_part("after", f"step_time.issues.{'9' * 5000}"), "a list of"),
        (lambda tools: tools.findings("after", "steptime"), "did you mean step_time?"),
        (lambda tools: tools.list_runs(None, None, None, 0), "expected 1 to 200"),
        (lambda tools: tools.list_runs("nosuch > 1", None, None, 5), "nosuch"),
    ],
)
def test_errors_say_what_to_do(ask: Callable[[AgentTools], Any], said: str, place: Path):
    with pytest.raises(TraceMLError, match=said.replace("?", r"\?")):
        ask(AgentTools([place / "logs"], place / "code"))


def test_the_line_of_a_failure_is_shown_where_its_path_has_spaces(place: Path):
    path = place / "logs" / "before" / "final_summary.json"
    before = path.read_text()
    (place / "code" / "my run: 2").mkdir()
    (place / "code" / "my run: 2" / "train it.py").write_text(SOURCE)
    summary = json.loads(before)
    where = "my run: 2/train it.py:7 in main"
    summary["failure"] = {"kind": "EXCEPTION", "error": "KeyError", "where": where}
    path.write_text(json.dumps(summary))
    answer = AgentTools([place / "logs"], place / "code").code("before")
    path.write_text(before)
    (shown,) = answer.result["places"]
    assert (shown["file"], shown["function"]) == ("my run: 2/train it.py", "main")
    assert "> 7: line_7 = 7" in shown["code"]


def test_lines_keep_their_numbers_after_a_masked_key_and_a_form_feed(place: Path):
    """Both stand above the line that the run points at."""
    path = place / "code" / "train.py"
    before = path.read_text()
    begin, end = (f"-----{edge} RSA PRIVATE KEY-----" for edge in ("BEGIN", "END"))
    lines = SOURCE.splitlines()
    lines[3:7] = [f'KEY = """{begin}', "MIIEpAIBAAKCAQEA1234567890abcdefghij", "ab=", f'{end}"""']
    lines[9] = "\fSECTION = 10"
    path.write_text("".join(f"{line}\n" for line in lines))
    answer = AgentTools([place / "logs"], place / "code").code("after")
    path.write_text(before)
    shown = answer.result["places"][0]["code"]
    assert "> 20: line_20 = 20" in shown


def test_a_long_answer_is_cut_and_says_so(place: Path):
    path = place / "logs" / "before" / "final_summary.json"
    before = path.read_text()
    summary = json.loads(before)
    summary["params"] = {f"param_{number}": "x" * 1000 for number in range(500)}
    path.write_text(json.dumps(summary))
    answer = AgentTools([place / "logs"], place / "code").summary_part("before", "params")
    path.write_text(before)
    assert len(json.dumps(answer.result)) <= MAX_ANSWER_CHARS
    assert answer.result["value"] and "too long" in answer.notes[-1]
