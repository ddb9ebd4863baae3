"""The jobs, and the verdict that a person who knows them would give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Job:
    """A script, how it is called, and what is true of it."""

    name: str
    script: str
    arguments: tuple[str, ...]
    kinds: tuple[str, ...]
    """The kinds of verdict that are right."""
    also: tuple[str, ...] = ()
    """Kinds that must be among the findings too, as what explains the verdict."""
    never: tuple[str, ...] = ()
    """Kinds that must not be among the warnings."""
    mentions: str = ""
    """What the text of the findings must name."""
    fixed: tuple[str, ...] | None = None
    """The arguments without the fault, to hold the predicted step time against."""
    compiles: bool = False
    """Whether it compiles its model: then it takes longest, and begins first."""

    def words(self, arguments: tuple[str, ...] | None = None) -> list[str]:
        """The script and its arguments."""
        chosen = self.arguments if arguments is None else arguments
        return [str(SCRIPTS / f"{self.script}.py"), *chosen]


COMPUTE = ("COMPUTE_BOUND",)

JOBS = (
    Job("HF Trainer, bf16", "hf_trainer", (), COMPUTE),
    Job("Lightning, bf16", "lightning_images", (), COMPUTE),
    Job(
        "Accelerate, accumulation, 2 workers",
        "accelerate_text",
        (),
        ("INPUT_BOUND",),
        fixed=("--fixed",),
    ),
    Job(
        "compiled GPT, hand-made batches",
        "compiled_gpt",
        (),
        ("WAIT_HEAVY",),
        mentions="get_batch",
        fixed=("--fixed",),
        compiles=True,
    ),
    Job(
        "ResNet, 2 workers, .item() every step",
        "resnet_few_workers",
        (),
        ("INPUT_BOUND",),
        never=("HOST_SYNC",),
        fixed=("--fixed",),
    ),
    Job(
        "detection, uneven images",
        "detection",
        (),
        ("WAIT_HEAVY", "HOST_SYNC"),
        mentions="match",
    ),
    Job("diffusion U-Net with EMA", "diffusion_unet", (), COMPUTE),
    Job("one CUDA graph", "cuda_graph", (), COMPUTE),
    Job(
        "compiled, reduce-overhead",
        "transformer",
        ("--compile-mode", "reduce-overhead", "--batch", "32"),
        COMPUTE,
        compiles=True,
    ),
    Job(
        "gradient checkpointing, accumulation 4",
        "transformer",
        ("--checkpointing", "--accumulate", "4", "--batch", "96", "--steps", "10"),
        COMPUTE,
    ),
    Job("fp16, GradScaler", "half_precision", (), COMPUTE, never=("NON_FINITE_LOSS",)),
    Job(
        "fp32 transformer",
        "transformer",
        ("--dtype", "float32", "--steps", "20"),
        COMPUTE,
        also=("TENSOR_CORES_IDLE",),
    ),
    Job(
        "many small kernels",
        "many_small_kernels",
        (),
        ("HOST_BOUND",),
        fixed=("--fixed",),
    ),
    Job(
        "gradient norms by .item()",
        "transformer",
        ("--reads-gradient-norms", "--batch", "4", "--steps", "100"),
        ("HOST_SYNC", "HOST_BOUND", "WAIT_HEAVY"),
        also=("HOST_SYNC",),
    ),
    Job("diverging loss", "diverging", (), ("NON_FINITE_LOSS",)),
)
