"""What a run trains with is recorded in its first steps, and costs nothing afterwards."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from traceml.store import logged
from traceml.trace import torch_settings
from traceml.trace.settings import MAX_MESSAGES, MAX_READINGS, SEEN_WITHIN_STEPS


def make_net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def data(samples=64):
    return TensorDataset(torch.ones(samples, 4), torch.ones(samples, 1))


def train(net, steps, optimizer=None, forward=None):
    optimizer = optimizer or torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        (forward or net)(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def said(traced):
    traced.finish()
    return [message for message in traced.messages() if message["kind"] == "settings"]


def recorded(traced):
    return logged.settings(said(traced))


def test_a_plain_loop_says_once_what_is_off_and_what_could_be_on(traced):
    train(make_net(), 20)
    messages = said(traced)
    assert len(messages) == 1
    settings = logged.settings(messages)
    assert settings.parameter_dtype == "float32"
    assert (settings.autocast_dtype, settings.compile_mode) == ("", "")
    assert (settings.has_grad_scaler, settings.checkpoints_activations) == (False, False)
    assert (settings.optimizer, settings.optimizer_can_fuse) == ("AdamW", True)
    assert settings.optimizer_is_fused is False
    assert settings.matmul_precision == torch.get_float32_matmul_precision()
    assert settings.num_workers is None


class Orthogonal(torch.optim.Optimizer):
    """One of a script's own, which has no fused form."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        pass


@pytest.mark.parametrize(
    ("fused", "can_fuse", "is_fused"), [(True, False, False), (False, True, False)]
)
def test_of_two_optimizers_one_that_is_fused_does_not_speak_for_the_other(
    fused, can_fuse, is_fused
):
    weight, bias = nn.Linear(2, 2).parameters()
    found = torch_settings.of_optimizers(
        [torch.optim.SGD([bias], 0.1, fused=fused), Orthogonal([weight])]
    )
    assert found["optimizer"] == "SGD + Orthogonal"
    assert (found["optimizer_can_fuse"], found["optimizer_is_fused"]) == (can_fuse, is_fused)


def test_autocast_that_the_model_turns_on_inside_its_forward_is_seen(traced):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_net()

        def forward(self, inputs):
            with torch.autocast("cpu", torch.bfloat16):
                found = self.inner(inputs)
            with torch.autocast("cpu", enabled=False):
                return found.float()

    train(Net(), 3)
    assert recorded(traced).autocast_dtype == "bfloat16"


def test_autocast_of_an_evaluation_is_not_the_trainings(traced):
    net = make_net()

    def forward(inputs):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            net(inputs)
        return net(inputs)

    train(net, 3, forward=forward)
    assert recorded(traced).autocast_dtype == ""


def test_autocast_that_was_turned_on_without_a_block_is_seen(traced):
    torch.set_autocast_enabled("cpu", True)
    try:
        train(make_net(), 3)
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert recorded(traced).autocast_dtype == "bfloat16"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_is_seen_and_no_failure(traced, use_reentrant):
    net = make_net()

    def forward(inputs):
        return checkpoint(net, inputs.requires_grad_(), use_reentrant=use_reentrant)

    train(net, 5, forward=forward)
    assert recorded(traced).checkpoints_activations is True
    assert "failure" not in [each["kind"] for each in traced.messages()]


def test_the_hooks_are_gone_after_the_first_steps_and_so_is_the_look(traced):
    from torch.utils import checkpoint as checkpointing

    places = (
        (torch.autocast, "__enter__"),
        (checkpointing, "check_backward_validity"),
        (checkpointing._CheckpointFrame, "__init__"),
    )
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert all(hasattr(getattr(*place), "__wrapped__") for place in places)
    train(net, SEEN_WITHIN_STEPS + 1, optimizer)
    assert not any(hasattr(getattr(*place), "__wrapped__") for place in places)
    train(net, 100, optimizer)
    owners = [getattr(look, "__closure__", None) or () for look in traced.session.looks]
    functions = [cell.cell_contents for cells in owners for cell in cells]
    assert not any("SettingsRecorder" in repr(function) for function in functions)


def test_a_new_optimizer_is_told_and_no_number_of_them_floods_the_ring(traced):
    net = make_net()
    train(net, 2, torch.optim.SGD(net.parameters(), lr=0.1))
    lasting = torch.optim.Adam(net.parameters(), fused=True)
    train(net, 2, lasting)
    for number in range(2 * MAX_READINGS):
        torch.set_num_threads(1 + number % 2)
        train(net, 2, torch.optim.SGD(net.parameters(), lr=0.1))
    messages = said(traced)
    assert messages[0]["optimizer"] == "SGD"
    assert "Adam" in messages[1]["optimizer"]
    assert len(messages) <= MAX_MESSAGES


@pytest.mark.slow
def test_the_loader_that_training_fetches_from_is_told(traced):
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = BatchSampler(SequentialSampler(range(64)), batch_size=8, drop_last=False)
    shared = data()
    validation = DataLoader(shared, batch_size=32, num_workers=1)
    for _ in range(2):
        for inputs, _ in DataLoader(shared, batch_sampler=sampler):
            net(inputs).sum().backward()
            optimizer.step()
        for inputs, _ in validation:  # the same dataset, under other settings
            with torch.no_grad():
                net(inputs)
    settings = recorded(traced)
    assert (settings.num_workers, settings.batch_size) == (0, 8)
    assert (settings.pin_memory, settings.prefetch_factor) == (False, None)


def test_nothing_of_the_users_is_called(traced):
    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_net()

        def __getattr__(self, name):
            if name in ("dynamo_ctx", "_compiled_call_impl", "bucket_bytes_cap", "forward"):
                raise AssertionError(name)
            return super().__getattr__(name)

        @property
        def mixed_precision(self):
            raise AssertionError

        def forward(self, inputs):
            return self.inner(inputs)

    class SlyOptimizer(torch.optim.SGD):
        @property
        def fused(self):
            raise AssertionError

    net = Sly()
    train(net, 12, SlyOptimizer(net.parameters(), lr=0.1))
    assert recorded(traced).optimizer == "SlyOptimizer"  # and `finish` finds no failure


class Asked(torch.Tensor):
    """A tensor class that does not want to be asked."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        raise AssertionError(function)


def test_a_tensor_class_of_the_users_is_not_asked():
    found = torch_settings.of_parameters([torch.ones(3).as_subclass(Asked)])
    assert found == {"parameter_dtype": "float32"}


def test_precision_is_known_under_its_newer_name_too(monkeypatch):
    def refuse():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has the older name alone")
    assert torch_settings.of_torch(on_gpu=False)["matmul_precision"] in ("high", "highest")


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "default"),
        ({"mode": "reduce-overhead"}, "reduce-overhead"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"mode": "max-autotune-no-cudagraphs"}, "max-autotune-no-cudagraphs"),
        ({"options": {"max_fusion_size": 8}}, "custom options"),
        ({"backend": "aot_eager"}, "backend aot_eager"),
    ],
    ids=str,
)
def test_the_mode_of_a_compiled_model_is_read_without_compiling_it(options, mode):
    net, compiled_in_place = make_net(), make_net()
    compiled_in_place.compile(**options)
    for model in (torch.compile(net, **options), compiled_in_place):
        found = torch_settings.of_models(torch_settings.parts_of([model]))
        assert found["compile_mode"] == mode


def test_weights_in_channels_last_are_told_from_others():
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1))
    assert torch_settings.of_parameters(convolutions.parameters())["channels_last"] is False
    convolutions.to(memory_format=torch.channels_last)
    assert torch_settings.of_parameters(convolutions.parameters())["channels_last"] is True
    assert "channels_last" not in torch_settings.of_parameters(make_net().parameters())


def test_a_message_with_values_of_other_kinds_says_nothing_of_them():
    odd = {"kind": "settings", "optimizer": 3, "num_workers": "four", "pin_memory": True}
    settings = logged.settings([odd | {"ddp_bucket_cap_mb": 25, "unheard_of": 1}])
    assert (settings.optimizer, settings.num_workers, settings.pin_memory) == (None, None, True)
    assert settings.ddp_bucket_cap_mb == 25
