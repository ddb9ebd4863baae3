"""What a device can do is told of that very device, and of no other with a similar name."""

from __future__ import annotations

import pytest

from traceml.model.device_peaks import NO_PEAK, DevicePeak, UnknownPeaks, device_peak, stated_peak


@pytest.mark.parametrize(
    ("name", "bf16", "memory"),
    [
        ("NVIDIA GB200", 2500, 8.0),
        ("NVIDIA GB300", 2500, 8.0),
        ("NVIDIA B200", 2250, 8.0),
        ("NVIDIA B300 SXM6 AC", 2250, 8.0),
        ("NVIDIA GH200 480GB", 989, 4.0),
        ("NVIDIA GH200 144G HBM3e", 989, 4.9),
        ("NVIDIA H200", 989, 4.8),
        ("NVIDIA H200 NVL", 835, 4.8),
        ("NVIDIA H100 80GB HBM3", 989, 3.35),
        ("NVIDIA H100 PCIe", 756, 2.0),
        ("NVIDIA A100-SXM4-80GB", 312, 2.039),
        ("NVIDIA A100 80GB PCIe", 312, 1.935),
        ("NVIDIA A100-SXM4-40GB", 312, 1.555),
        ("NVIDIA A10", 125, 0.6),
        ("NVIDIA A10G", 70, 0.6),
        ("NVIDIA RTX A6000", 154.8, 0.768),
        ("NVIDIA RTX 6000 Ada Generation", 364.2, 0.96),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 1.792),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 1.792),
        ("NVIDIA L20", 119.5, 0.864),
        ("NVIDIA GeForce RTX 4090", 165.2, 1.008),
        ("AMD Instinct MI325X", 1307, 6.0),
        ("AMD Instinct MI355X", 2516.6, 8.0),
        ("AMD Instinct MI250X", 191.5, 1.6),
    ],
)
def test_a_device_that_is_known(name: str, bf16: float, memory: float) -> None:
    found = device_peak(name)
    assert found is not None
    assert found.operations("bfloat16", has_tf32=False) == pytest.approx(bf16 * 1e12)
    assert found.operations("float16", has_tf32=False) == pytest.approx(bf16 * 1e12)
    assert found.memory == pytest.approx(memory * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A40-8Q",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA B2000",
    ],
)
def test_a_device_that_is_not(name: str | None) -> None:
    assert device_peak(name) is None


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla T4"])
def test_matrix_units_that_know_no_bfloat16(name: str) -> None:
    found = device_peak(name)
    assert found is not None and found.operations("float16", False) is not None
    assert found.operations("bfloat16", False) is None
    assert found.operations("float32", True) == found.operations("float32", False)


def test_what_people_state_goes_before_what_is_known() -> None:
    known = device_peak("NVIDIA H200")
    assert known is not None
    found = stated_peak("bf16 = 700, memory=4.0", known)
    assert found == known._replace(bf16=700e12, memory=4e12)
    assert stated_peak("fp64=67", NO_PEAK) == DevicePeak(fp64=67e12)


@pytest.mark.parametrize(
    "text", ["bf16", "bf16=fast", "bf16=0", "bf16=-1", "bf16=nan", "fp128=3", "bf16=1,,"]
)
def test_what_cannot_be_read_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(UnknownPeaks, match=r"TRACEML_DEVICE_PEAKS holds .*bf16=989,memory=3\.35"):
        stated_peak(text, NO_PEAK)
