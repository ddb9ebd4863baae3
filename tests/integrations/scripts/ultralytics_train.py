"""Ultralytics' `YOLO(…).train(…)` on images that are drawn here: two epochs with accumulation."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw
from ultralytics import YOLO

EPOCHS, BATCHES, BATCH, MICRO_BATCHES = 2, 24, 4, 2
here = Path.cwd()


def draw(part: str, count: int) -> None:
    """Squares, and where they are."""
    images, labels = here / part / "images", here / part / "labels"
    images.mkdir(parents=True)
    labels.mkdir()
    for place in range(count):
        image = Image.new("RGB", (64, 64), (place % 255, 80, 120))
        ImageDraw.Draw(image).rectangle((16, 16, 47, 47), fill=(255, place % 255, 0))
        image.save(images / f"{place}.png")
        (labels / f"{place}.txt").write_text("0 0.5 0.5 0.5 0.5\n")


draw("train", BATCHES * BATCH)
draw("val", 8)
(here / "squares.yaml").write_text(
    f"path: {here}\ntrain: train/images\nval: val/images\nnames:\n  0: square\n"
)
YOLO("yolov8n.yaml").train(
    data=str(here / "squares.yaml"),
    epochs=EPOCHS,
    imgsz=64,
    batch=BATCH,
    nbs=BATCH * MICRO_BATCHES,
    warmup_epochs=0,
    workers=0,
    device="cpu",
    amp=False,
    plots=False,
    project=str(here / "runs"),
)
