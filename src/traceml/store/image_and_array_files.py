"""Reads logged images (by Pillow, where it is installed) and NumPy arrays, and writes pictures."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traceml.model.errors import UnreadableArtifact
from traceml.store.regular_files import stat_regular

MAX_PIXELS = 64 << 20
"""Of one image, about 200 MB of memory; a small file may claim any number of them."""
MAX_ARRAY_BYTES = 1 << 30
FORMATS = ("PNG", "JPEG")

Pixels = npt.NDArray[np.uint8]
"""Rows, columns, and red, green and blue."""


def read_image(path: Path) -> Pixels:
    """Returns the pixels of an image over white; raises UnreadableArtifact."""
    try:
        from PIL import Image
    except ImportError:
        raise UnreadableArtifact(
            "images need Pillow; pip install 'traceml-insight[images]'"
        ) from None
    if stat_regular(path) is None:
        raise UnreadableArtifact("it is no regular file")
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableArtifact(f"it has {image.width:,} × {image.height:,} pixels")
            whole = image.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableArtifact(f"it is no PNG or JPEG image, or damaged ({error})") from None
    paper = Image.new("RGBA", whole.size, "white")
    return np.asarray(Image.alpha_composite(paper, whole).convert("RGB"))


def write_image(path: Path, pixels: Pixels) -> None:
    """Writes a PNG file; raises OSError."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG")


def encode_png(pixels: Pixels, max_side: int) -> tuple[bytes, tuple[int, int]]:
    """Returns an image as a PNG file, and its width and height; a larger one is made smaller."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((max_side, max_side))
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True)
    return content.getvalue(), image.size


def read_array(path: Path) -> npt.NDArray[np.generic]:
    """Returns an array that is read from the disk as it is used; raises UnreadableArtifact.

    An array of objects is a pickle, and refused.
    """
    try:
        size = path.stat().st_size
        if size > MAX_ARRAY_BYTES:
            raise UnreadableArtifact(f"it has {size:,} bytes, more than {MAX_ARRAY_BYTES:,}")
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise UnreadableArtifact("it is no .npy file")
        array: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableArtifact(f"it is no array of numbers, or damaged ({text})") from None
    return array
