"""Processes, host and GPUs: context where it was sampled, and a GPU only where there is one."""

from dataclasses import replace
from typing import Any

import numpy as np

from counted_runs import TRANSFORMER_BF16
from drawn_runs import figure, page_of, part, standing_of
from factories import GIB, count_gpus, make_run, on_nodes
from traceml.facts.history import History, SensorHistory
from traceml.figures.page import Lines
from traceml.figures.run_page import run_page
from traceml.model.lineage import Code, Environment, Gpu, Hardware, Lineage
from traceml.model.rank import Region
from traceml.store.records import Artifact, RunRecords, TracerHealth
from traceml.summaries.build import build


def tiles(run: RunRecords, name: str) -> dict[str, tuple[str, str | None]]:
    return {tile.label: (tile.value, tile.note) for tile in part(page_of(run), name).tiles}


def ids(run: RunRecords) -> list[str]:
    return [found.id for found in page_of(run).parts]


def test_a_process_shows_its_cores_and_its_memory() -> None:
    shown = tiles(make_run(), "process")
    assert shown["CPU"][0] == "1.0 cores"
    assert shown["Memory"] == ("1.00 GiB", "3.1% of the host's")
    page = page_of(make_run())
    assert figure(page, "process-cpu").series[0].values == (1.0, 1.0, 1.0)
    assert figure(page, "process-memory").y.unit == "GiB"


def test_several_processes_are_a_table() -> None:
    (table,) = part(page_of(make_run(ranks=3)), "process").tables
    assert table.columns[:3] == ("Rank", "CPU", "Memory")
    assert "Workers" in table.columns


def test_a_run_without_data_workers_has_no_columns_about_them() -> None:
    (table,) = part(page_of(make_run(ranks=3, workers=0)), "process").tables
    assert not [column for column in table.columns if "Workers" in column]
    assert len(table.rows) == 3


def test_the_host_shows_its_cpu_and_its_memory() -> None:
    shown = tiles(make_run(), "system")
    assert shown["CPU"] == ("50%", "peak 50%")
    assert shown["RAM"] == ("8.00 GiB", "25% of 32.0 GiB")
    cpu = figure(page_of(make_run()), "system-cpu")
    assert (cpu.y.low, cpu.y.high, cpu.y.unit) == (0.0, 100.0, "%")


def test_tiles_of_several_machines_say_whose_they_are() -> None:
    shown = tiles(on_nodes(make_run(ranks=4), 2, cpu_share=0.9), "system")
    assert shown["CPU"] == ("70%", "mean of 2 machines; highest 90% on node-b")
    assert shown["RAM"][1] == "mean of 2 machines; highest 8.00 GiB on node-a"


def test_there_is_a_gpu_card_only_where_there_is_a_gpu() -> None:
    assert "gpu" not in ids(make_run())
    assert "gpu" in ids(make_run(gpu=True))
    shown = tiles(make_run(gpu=True), "gpu")
    assert "GPU utilization" not in shown  # two samples while steps ran say nothing
    assert shown["Temperature"][0] == "60 °C"
    assert tiles(make_run(gpu=True, sampled_s=8), "gpu")["GPU utilization"][0] == "90%"
    assert part(page_of(make_run(gpu=True)), "gpu").note == "NVIDIA H200"


def counted_history(*gpus: dict[str, list[float]]) -> History:
    return History(
        sensors=SensorHistory(
            at_s=np.arange(2.0),
            hosts={"": {}},
            processes={},
            gpus={
                index: {name: np.array(values) for name, values in each.items()}
                for index, each in enumerate(gpus)
            },
        )
    )


def test_what_a_gpu_did_is_a_tile_each_and_one_picture() -> None:
    run = count_gpus(make_run(gpu=True), **TRANSFORMER_BF16)
    shown = tiles(run, "gpu")
    assert shown["SMs at work"] == ("88%", "while steps ran")
    assert shown["Tensor cores"][0] == "32%" and shown["FP32 units"][0] == "2.0%"
    assert shown["Memory bandwidth"] == ("43%", "of the highest, while steps ran")
    assert not part(page_of(run), "gpu").tables
    history = counted_history({"sm_share": [0.5, 0.9], "dram_share": [0.1, np.nan]})
    lines = figure(run_page(None, standing_of("live", None), history), "gpu-counters")
    drawn = {series.name: series.values for series in lines.series}
    assert drawn == {"SMs at work": (50.0, 90.0), "Memory bandwidth": (10.0, None)}


def test_several_gpus_are_a_table_and_a_picture_for_each_counter() -> None:
    run = count_gpus(make_run(2, gpu=True), busy_share=0.9, sm_share=0.5)
    (table,) = part(page_of(run), "gpu").tables
    assert table.columns == ("GPU", "In use", "SMs at work")
    assert [row.cells for row in table.rows] == [(f"GPU {n}", "90%", "50%") for n in range(2)]
    history = counted_history({"sm_share": [0.5, 0.9]}, {"sm_share": [0.2, 0.3]})
    page = run_page(None, standing_of("live", None), history)
    assert [series.name for series in figure(page, "gpu-sm-share").series] == ["GPU 0", "GPU 1"]


def test_an_idle_disk_and_an_idle_network_are_not_drawn() -> None:
    at = np.arange(3.0)
    sensors = SensorHistory(
        at_s=at,
        hosts={
            "": {
                "disk_read_bytes_per_s": np.array([10.0, 20.0, np.nan]),
                "network_sent_bytes_per_s": np.array([np.nan, 5e8, 4e8]),
            }
        },
        processes={},
        gpus={},
    )
    page = run_page(None, standing_of("live", None), History(sensors=sensors))
    assert [drawn.id for drawn in part(page, "system").figures] == ["system-network"]
    (lines,) = part(page, "system").figures
    assert (lines.y.unit, lines.series[0].values) == ("MiB/s", (None, 476.8, 381.5))


def test_the_machines_of_a_run_over_several_have_a_line_each() -> None:
    def sampled(share: float, sent: float) -> dict[str, Any]:
        known = {"cpu_share": share, "ram_used_bytes": 2e9, "network_sent_bytes_per_s": sent}
        return {name: np.full(3, value) for name, value in known.items()}

    def drawn(hosts: dict[str, Any]) -> dict[str, Lines]:
        sensors = SensorHistory(at_s=np.arange(3.0), hosts=hosts, processes={}, gpus={})
        page = run_page(None, standing_of("live", None), History(sensors=sensors))
        return {each.id: each for each in part(page, "system").figures}

    found = drawn({"host-a": sampled(0.25, 5e8), "host-b": sampled(0.5, 0.0)})
    assert list(found) == ["system-cpu", "system-ram", "system-network-sent"]
    cpu = found["system-cpu"]
    assert cpu.title == "CPU by node"
    assert {each.name: each.values[0] for each in cpu.series} == {"host-a": 25.0, "host-b": 50.0}
    many = drawn({f"host-{number}": sampled(number / 100, 0.0) for number in range(40)})
    assert [each.name for each in many["system-cpu"].series] == [
        "Highest node",
        "Median node",
        "Lowest node",
    ]


def test_a_host_that_nobody_sampled_has_no_card() -> None:
    assert {"process", "system", "gpu"}.isdisjoint(ids(make_run(sampled_s=0)))


def test_a_machine_with_many_gpus_is_three_lines() -> None:
    run = make_run(ranks=17, gpu=True, steps=20)
    assert len(figure(page_of(run), "gpu-utilization").series) == 3
    assert len(figure(page_of(run), "process-cpu").series) == 3


def test_where_a_run_comes_from_is_told_in_tables() -> None:
    lineage = Lineage(
        code=Code(commit="0123456789abcdef", branch="main", dirty=True),
        environment=Environment(python="3.11", torch="2.13"),
        hardware=Hardware(cpu="EPYC", cores=8, ram_bytes=GIB, gpus=(Gpu("H200"), Gpu("H200"))),
    )
    made = make_run()
    run = replace(
        made,
        ranks=(replace(made.ranks[0], regions=(Region("augment", 10, 1.0, 0.5, None),)),),
        params={"lr": 0.1, "name": "a\x1b[2Jb"},
        param_sources={"lr": "argparse"},
        artifacts=(Artifact("model", "/tmp/model.pt", GIB, "00"),),
        lineage=lineage,
    )
    tables = {table.title: table.rows for table in part(page_of(run), "origin").tables}
    assert list(tables) == [
        "Code, command and machine",
        "Parameters",
        "Named regions",
    ]
    told = dict(row.cells for row in tables["Code, command and machine"])
    assert told["Commit"] == "0123456789ab · main · with changes that are not committed"
    assert told["Environment"] == "Python 3.11 · torch 2.13"
    assert told["GPUs"] == "2 × H200"
    assert [row.cells for row in tables["Parameters"]] == [
        ("name", "a?[2Jb", "log_params"),
        ("lr", "0.1", "argparse"),
    ]
    assert tables["Named regions"][0].cells[:2] == ("augment", "10")
    (files,) = part(page_of(run), "artifacts").tables
    assert files.rows[0].cells[:3] == ("model", "n/a", "1.00 GiB")
    assert "/tmp/model.pt" in files.rows[0].cells[-1]


def test_what_the_tracer_could_not_do_is_said_last() -> None:
    made = make_run()
    health = TracerHealth(steps_lost=3, failures=1, last_failure="ring full", values_refused=1)
    page = page_of(replace(made, ranks=(replace(made.ranks[0], health=health),)))
    (table,) = part(page, "tracer").tables
    assert [row.cells[1] for row in table.rows] == [
        "3 steps lost",
        "1 tracer failure",
        "1 logged value not recorded or cut",
        "ring full",
    ]
    assert page.parts[-1].id == "tracer"


def test_a_tracer_that_could_do_everything_says_nothing() -> None:
    assert "tracer" not in ids(make_run())


def test_a_foreign_summary_without_a_history_still_has_a_page() -> None:
    page = run_page(build(make_run(ranks=2), 0.0, "0"), standing_of(), History())
    assert [drawn.id for drawn in part(page, "step-time").figures] == [
        "phase-tree",
        "median-worst",
    ]
