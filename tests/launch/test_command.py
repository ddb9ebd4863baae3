"""What a command is, read off its words."""

from __future__ import annotations

import pytest

from traceml.launch.command import (
    Cluster,
    for_script,
    isolated_python,
    meeting_point,
    subject,
)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("python train.py", None),
        ("python -I train.py", "-I"),
        ("/usr/bin/python3.11 -uE train.py", "-E"),
        ("python -W ignore -S train.py", "-S"),
        ("python -X importtime -I -m train", "-I"),
        ("python -Werror::ImportWarning train.py", None),
        ("python -XInteresting train.py", None),
        ("python -m train -I", None),
        ("python -c pass -E", None),
        ("python train.py -I", None),
        ("python - -I", None),
        ("python --check-hash-based-pycs always -I train.py", "-I"),
        ("torchrun -I train.py", None),
        ("python", None),
    ],
)
def test_an_isolated_python_is_recognised(words: str, option: str | None) -> None:
    assert isolated_python(words.split()) == option


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torchrun --nproc-per-node 2 src/train.py --lr 1", "src/train.py"),
        ("python -m package.train --lr 1", "package-train"),
        ("accelerate launch --cpu train.py", "train.py"),
        ("./job.sh", "./job.sh"),
    ],
)
def test_a_command_is_named_after_what_it_runs(words: str, name: str) -> None:
    assert subject(words.split()) == name


MASTER = {"MASTER_ADDR": "host-e", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("words", "environment", "place"),
    [
        ("torchrun --nnodes=2 --master-addr=a --master-port=77 t.py", {}, ("a", 77)),
        ("torchrun --nnodes 2 --master_addr a t.py", MASTER, ("a", 29500)),
        ("torchrun --nnodes=1:4 --rdzv-endpoint=[::1]:88 t.py", MASTER, ("::1", 88)),
        ("torchrun --nnodes=2 --rdzv_endpoint a t.py", {}, ("a", 29400)),
        ("srun python t.py --master-port 5", MASTER, ("host-e", 1234)),
        ("srun python t.py", {}, None),
        ("torchrun --standalone t.py", {}, None),
        ("torchrun --nnodes 2 --master-addr a --master-port $PORT t.py", {}, None),
    ],
)
def test_where_the_ranks_meet(
    words: str, environment: dict[str, str], place: tuple[str, int] | None
) -> None:
    assert meeting_point(words.split(), environment) == place


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (Cluster(), []),
        (Cluster(processes_per_node=2), ["--nproc-per-node=2", "--standalone"]),
        (
            Cluster(nodes=2, node_rank=1, master_addr="head", master_port=1234),
            [
                *("--nproc-per-node=1", "--nnodes=2", "--node-rank=1"),
                *("--master-addr=head", "--master-port=1234"),
            ],
        ),
    ],
    ids=["alone", "two here", "two nodes"],
)
def test_a_script_goes_through_torchs_launcher_only_where_it_must(
    cluster: Cluster, expected: list[str]
) -> None:
    command = for_script(__file__, ["--lr", "1"], cluster)
    launcher = ["-m", "torch.distributed.run"] if expected else []
    assert command[1:] == [*launcher, *expected, __file__, "--lr", "1"]
