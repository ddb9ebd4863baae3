"""Scripts in the styles people publish, unmodified: the steps recorded are the steps they took."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from processes import AT_ONCE
from published_scripts import Ran

FOLDER = Path(__file__).parents[1] / "scripts"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
LAUNCHED = {
    "cnn_train_validate",
    "compile_eager",
    "loader_workers_persistent",
    "mlp_dataloader",
    "nanogpt",
    "notebook_export",
    "spawn_ddp",
    "spawn_fixed_steps",
    "thread_training",
}
"""These run under `traceml run`, a new interpreter each: those that start processes or threads,
compile, or are the most usual ones. The others are copies of a process that has torch already."""


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """The runs of the scripts that the selected tests ask for."""
    logs = tmp_path_factory.mktemp("scripts")
    selected = [item for item in request.session.items if item.path == Path(__file__)]
    asked = {item.callspec.params.get("name") for item in selected if hasattr(item, "callspec")}
    names = sorted(asked & set(SCRIPTS) | (set() if all_named(selected) else set(SCRIPTS)))
    scripts = {name: FOLDER / f"{name}.py" for name in names}
    launched = [name for name in names if name in LAUNCHED]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = pool.map(lambda name: Ran.launched(scripts[name], logs), launched)
        found = dict(zip(launched, ran, strict=True))
    copies = [script for name, script in scripts.items() if name not in LAUNCHED]
    return {**found, **Ran.forked(copies, logs, AT_ONCE)} if copies else found


def all_named(items):
    """Whether every selected test names its script, so that the others need not run."""
    return all(hasattr(item, "callspec") for item in items)


def test_there_are_scripts_in_many_styles():
    assert len(SCRIPTS) >= 20
    assert not any("traceml" in path.read_text() for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_step_is_recorded_and_no_other(runs, name):
    runs[name].assert_every_step_is_recorded()


def test_accumulation_has_its_micro_batches_inside_the_step(runs):
    ran = runs["grad_accumulation_leftover"]
    assert ran["backward_ms"] > 0
    assert ran["input_wait_ms"] > 0


def test_both_networks_of_a_gan_are_forward_and_both_updates_optimizer(runs):
    ran = runs["gan_dcgan"]
    assert min(ran["forward_ms"], ran["backward_ms"], ran["optimizer_ms"]) > 0
    assert ran["compute_ms"] <= ran["traced_step_time_ms"]


def test_the_closures_of_lbfgs_are_forward_and_backward_not_optimizer(runs):
    ran = runs["lbfgs_time_sequence"]
    assert min(ran["forward_ms"], ran["backward_ms"], ran["optimizer_ms"]) > 0
    assert ran["compute_ms"] <= ran["traced_step_time_ms"]


def test_a_plain_generator_leaves_input_wait_unmeasured(runs):
    ran = runs["char_rnn_generator"]
    assert ran["input_wait_ms"] is None
    assert ran["step_time_ms"] == pytest.approx(ran["traced_step_time_ms"])


def test_layers_in_a_list_are_forward_where_the_model_itself_is_never_called(runs):
    assert runs["flow_log_prob"]["forward_ms"] > 0


@pytest.mark.parametrize("name", ["cnn_train_validate", "nanogpt", "gcn_full_batch"])
def test_evaluation_is_between_steps(runs, name):
    ran = runs[name]
    assert ran["evaluation_ms"] > 0
    between = ran["between_ms"]
    assert between >= ran["evaluation_ms"]
    assert ran["wall_step_ms"] == pytest.approx(ran["step_time_ms"] + between, rel=1e-3)


def test_checkpoints_are_between_steps(runs):
    assert runs["cnn_train_validate"]["checkpoint_ms"] > 0


def test_an_aborted_batch_is_no_step(runs):
    ran = runs["aborted_batch_caught"]
    assert ran.summary["tracer"]["steps_aborted"] > 0
    assert ran.steps_recorded == ran.steps_taken


def test_spawned_ranks_are_ranks_and_loader_workers_are_not(runs):
    for name in ("spawn_ddp", "spawn_fixed_steps"):
        assert set(runs[name].summary["step_time"]["groups"]["rows"]) == {"0", "1"}
    assert runs["spawn_ddp"].summary["meta"]["world_size"] == 2
    assert runs["loader_workers_persistent"].summary["meta"]["world_size"] == 1


SETTINGS = {
    "amp_gradscaler": {"has_grad_scaler": False, "autocast_dtype": ""},
    "amp_gradscaler_overflow": {"has_grad_scaler": True, "autocast_dtype": "bfloat16"},
    "checkpointed_resume": {"checkpoints_activations": True},
    "compile_eager": {"compile_mode": "backend eager", "checkpoints_activations": None},
    "gan_dcgan": {"accumulation_steps": 1, "parallelism": "", "channels_last": False},
    "grad_accumulation_leftover": {"accumulation_steps": 4},
    "lbfgs_time_sequence": {"optimizer": "LBFGS", "optimizer_can_fuse": False},
    "loader_workers_persistent": {"num_workers": 2, "persistent_workers": True},
    "mlp_dataloader": {"compile_mode": "", "checkpoints_activations": False, "cpu_threads": 1},
    "pinn_adam_then_lbfgs": {"optimizer": "Adam + LBFGS"},
    "spawn_ddp": {"parallelism": "DDP", "ddp_bucket_cap_mb": 25.0, "differs_between_ranks": []},
    "unet_autocast": {"autocast_dtype": "bfloat16", "parameter_dtype": "float32"},
}
"""What each script trains with, as its author wrote it."""


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_those_of_the_script(runs, name):
    settings = runs[name].summary["settings"]
    assert {key: settings[key] for key in SETTINGS[name]} == SETTINGS[name]
