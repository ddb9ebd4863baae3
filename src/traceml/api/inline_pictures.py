"""Logged images for pages: decoded, scaled down and written anew, within a limit for the page."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

from traceml.api.artifact_contents import located
from traceml.figures.page import Picture
from traceml.figures.words import line
from traceml.model.artifact import ArtifactKind
from traceml.model.errors import UnreadableArtifact
from traceml.store.image_and_array_files import Pixels, encode_png, read_image
from traceml.summaries.record import ArtifactSummary, Summary

RUN_PICTURE = 420
"""Pixels of the longer side of an image on the page of its run."""
THUMBNAIL = 280
"""Of an image that stands beside those of many other runs."""
MAX_COMPARED_SIDE = 1280
"""Of a picture that shows two images and their difference side by side."""
MAX_PICTURE_BYTES = 1 << 20
MAX_PAGE_BYTES = 6 << 20
"""Of all pictures of a page together, as files."""
MAX_PICTURES = 80


class InlinePictures:
    """The pictures of one page, until the page is full."""

    def __init__(self) -> None:
        self.kept: list[Picture] = []
        self.left_out: list[str] = []
        """Names of those that have no place on the page, or cannot be read."""
        self._left_bytes = MAX_PAGE_BYTES

    def add(self, name: str, pixels: Pixels, caption: str | None, max_side: int) -> None:
        """Adds an image, made smaller where it is larger than a page needs."""
        if len(self.kept) >= MAX_PICTURES:
            self.left_out.append(name)
            return
        content, (width, height) = encode_png(pixels, max_side)
        if len(content) > min(MAX_PICTURE_BYTES, self._left_bytes):
            self.left_out.append(name)
            return
        self._left_bytes -= len(content)
        full = (pixels.shape[1], pixels.shape[0])
        smaller = "" if full == (width, height) else "shown smaller: {} × {} pixels".format(*full)
        said = ", ".join(filter(None, (caption, smaller)))
        self.kept.append(
            Picture(
                id=f"picture-{len(self.kept)}-{zlib.crc32(name.encode(errors='replace')):08x}",
                title=line(name, 120),
                source=f"data:image/png;base64,{base64.b64encode(content).decode()}",
                width=width,
                height=height,
                caption=said or None,
            )
        )

    def add_file(self, name: str, folder: Path, found: ArtifactSummary, max_side: int) -> None:
        """Adds a logged image of a run; one that cannot be read is only counted."""
        try:
            path = located(name, folder, found.stored, found.size_bytes, found.note)
            pixels = read_image(path)
        except UnreadableArtifact:
            self.left_out.append(name)
            return
        self.add(name, pixels, None, max_side)

    def keep_difference(self, name: str, pixels: Pixels) -> str | None:
        """Keeps the picture of two images and their difference; the page has no file of it."""
        self.add(
            name, pixels, "A, B, and where both have one size their difference", MAX_COMPARED_SIDE
        )
        return None

    @property
    def note(self) -> str | None:
        """Which images are not shown; `None` where all are."""
        if not self.left_out:
            return None
        names = ", ".join(line(name, 60) for name in self.left_out[:3])
        more = "" if len(self.left_out) <= 3 else f" and {len(self.left_out) - 3} more"
        return f"Images that cannot be shown here, or have no place: {names}{more}."


def is_image(found: ArtifactSummary) -> bool:
    """Returns whether a logged file is a PNG or JPEG image."""
    return found.kind == ArtifactKind.IMAGE.value


def images_of(summary: Summary) -> dict[str, ArtifactSummary]:
    """Returns the logged images of a run, by name."""
    return {name: found for name, found in summary.artifacts.items() if is_image(found)}
