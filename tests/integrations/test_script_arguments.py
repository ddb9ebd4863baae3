"""The arguments that libraries hold are among the parameters of a run of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import TORCH_STEPS, run_traceml

TRAIN = "".join(f"    {line}\n" for line in (TORCH_STEPS + "take_steps(3)").splitlines())


def test_a_hydra_configuration_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    (tmp_path / "conf.yaml").write_text(
        "lr: 0.1\nmodel: {width: 8, lr: '${lr}'}\ngone: '${nothing.of.this}'\nseed: ???\n"
        "hydra: {run: {dir: .}, output_subdir: null}\n"
    )
    script = (
        "import hydra\n"
        "@hydra.main(version_base=None, config_path='.', config_name='conf')\n"
        f"def main(cfg):\n{TRAIN}\n"
        "main()\n"
    )
    done = run_traceml(["run", "train.py", "--args", "lr=0.5"], tmp_path, script)
    assert done.status == 0, done.stderr
    assert done.summary["params"] == {
        "lr": 0.5,
        "model": {"width": 8, "lr": "${lr}"},
        "gone": "${nothing.of.this}",
        "seed": "???",
    }
    assert set(done.summary["param_sources"].values()) == {"OmegaConf"}


def test_an_omegaconf_configuration_is_taken_without_running_its_resolvers(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    script = (
        "from enum import Enum\n"
        "from pathlib import Path\n"
        "from omegaconf import OmegaConf\n"
        "class Colour(Enum):\n"
        "    RED = 'red'\n"
        "OmegaConf.register_new_resolver('draw', lambda: print('resolved'))\n"
        "config = OmegaConf.create({'lr': 0.1, 'seed': '${draw:}', 'part': '${model}',\n"
        "    'model': {'lr': '${lr}', 'sizes': [1, {'two': 2}], 'at': Path('x/y'), 'none': None},\n"
        "    'colour': Colour.RED})\n"
        f"def main():\n{TRAIN}\nmain()\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, "resolved" in done.stdout) == (0, False), done.stderr
    assert done.summary["params"] == {
        "lr": 0.1,
        "seed": "${draw:}",
        "part": "${model}",
        "model": {"lr": "${lr}", "sizes": [1, {"two": 2}], "at": "x/y", "none": None},
        "colour": "red",
    }


TRANSFORMERS = """\
from dataclasses import dataclass, field
import sys
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class ModelArguments:
    width: int = field(default=4)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return {"x": torch.ones(4), "labels": torch.ones(1)}

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)
    def forward(self, x, labels):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}

def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    Trainer(Model(model_args.width), training_args, train_dataset=Data()).train()

main()
"""


def test_the_arguments_of_transformers_are_taken(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ["--learning_rate", "0.003", "--max_steps", "4", "--output_dir", "out", "--use_cpu"]
    words += ["--report_to", "none", "--hub_token", "hf_abcdefghijklmnopqrstuvwx12345"]
    done = run_traceml(["run", "train.py", "--args", *words], tmp_path, TRANSFORMERS)
    assert done.status == 0, done.stderr
    params, sources = done.summary["params"], done.summary["param_sources"]
    assert {name: params[name] for name in ("learning_rate", "max_steps", "width")} == {
        "learning_rate": 0.003,
        "max_steps": 4,
        "width": 4,
    }
    assert (sources["learning_rate"], sources["width"]) == ("transformers", "dataclass")
    assert params["hub_token"] == "***"
    assert not [name for name in params if name.startswith("_")]
    assert done.summary["tracer"]["failures"] == 0


LIGHTNING = """\
import torch
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def __init__(self, lr=0.1, width=4, loss=torch.nn.MSELoss()):
        super().__init__()
        self.save_hyperparameters(ignore=["loss"])
        self.layer = torch.nn.Linear(width, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), 4)
pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False).fit(Model(lr=0.25), loader)
"""


def test_the_hyperparameters_of_a_lightning_module_are_taken(tmp_path: Path) -> None:
    """The module is no variable of the script's: only Lightning has it."""
    pytest.importorskip("pytorch_lightning")
    done = run_traceml(["run", "train.py"], tmp_path, LIGHTNING)
    assert done.status == 0, done.stderr
    assert done.summary["params"] == {"lr": 0.25, "width": 4}
    assert set(done.summary["param_sources"].values()) == {"Lightning"}
