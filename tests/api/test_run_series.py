"""Which commands are the same but for what tells repetitions apart."""

from __future__ import annotations

import pytest

from traceml.api.run_series import series_command


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("python train.py --lr 0.1", "python train.py --lr 0.1"),
        ("/opt/venv/bin/python train.py", "python train.py"),
        ("python train.py --seed 3 --lr 0.1", "python train.py --lr 0.1"),
        ("python train.py --seed=3 data.csv", "python train.py data.csv"),
        ("python train.py --seed --lr 0.1", "python train.py --lr 0.1"),
        ("python train.py seed=3 +trainer.fold=1 lr=0.1", "python train.py lr=0.1"),
        ("python train.py --output-dir out/7 data.csv", "python train.py data.csv"),
        ("torchrun --master-port 29501 train.py", "torchrun train.py"),
        ("", ""),
    ],
)
def test_seeds_names_and_the_interpreters_folder_are_left_out(command: str, kept: str):
    assert series_command(command) == kept


def test_other_parameters_are_left_out_on_demand():
    command = "python train.py --num-workers 4 --lr 0.1"
    assert series_command(command, frozenset({"num_workers"})) == "python train.py --lr 0.1"


def test_an_unknown_command_stays_unknown():
    assert series_command(None) is None
