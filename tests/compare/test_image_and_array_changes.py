"""What changed between two images, and between two arrays of embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from traceml.compare.array_changes import MAX_POINTS, compare_arrays
from traceml.compare.image_changes import GAP_PIXELS, compare_images, side_by_side


def image(height=4, width=6, value=100):
    return np.full((height, width, 3), value, np.uint8)


def test_pixels_that_differ_are_counted_and_measured():
    a, b = image(), image()
    b[1, 2, 0] = 151
    found = compare_images(a, b)
    assert (found.lhs_size, found.changed_share) == ((6, 4), pytest.approx(1 / 24))
    assert found.max_difference == pytest.approx(51 / 255)
    assert found.mean_difference == pytest.approx(51 / 255 / 72)


def test_darker_and_brighter_count_alike():
    a, b = image(value=10), image(value=250)
    assert compare_images(a, b).mean_difference == compare_images(b, a).mean_difference
    assert compare_images(a, a).changed_share == 0


def test_images_of_two_sizes_are_shown_and_not_subtracted():
    a, b = image(4, 6), image(8, 3)
    assert compare_images(a, b).changed_share is None
    assert side_by_side(a, b).shape == (8, 6 + GAP_PIXELS + 3, 3)


def test_a_picture_holds_both_and_their_difference_brightened():
    a, b = image(), image()
    b[0, 0] = 101
    picture = side_by_side(a, b)
    assert picture.shape == (4, 3 * 6 + 2 * GAP_PIXELS, 3)
    np.testing.assert_array_equal(picture[:, :6], a)
    np.testing.assert_array_equal(picture[:, 6 + GAP_PIXELS : 12 + GAP_PIXELS], b)
    difference = picture[:, -6:]
    assert difference[0, 0].tolist() == [64, 64, 64]
    assert difference[1:].max() == 0


def embeddings(rows=200, columns=5, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def test_an_array_is_the_same_as_itself():
    found = compare_arrays(embeddings(), embeddings())
    assert (found.relative_change, found.cosine) == (0, pytest.approx(1))
    assert found.alignment == pytest.approx(1)
    assert found.projection.lhs == found.projection.rhs


def test_rotated_embeddings_are_aligned_though_no_row_is_the_same():
    a = embeddings()
    rotation = np.linalg.qr(embeddings(5, 5, seed=1))[0]
    found = compare_arrays(a, a @ rotation)
    assert found.alignment == pytest.approx(1, abs=1e-5)
    assert abs(found.cosine) < 0.9
    assert compare_arrays(a, embeddings(seed=2)).alignment < 0.2


def test_two_clouds_are_told_apart_on_the_components_of_both():
    a, b = embeddings(), embeddings(rows=3000, seed=1)
    b[:, 0] += 20
    projection = compare_arrays(a, b).projection
    lhs, rhs = np.array(projection.lhs), np.array(projection.rhs)
    assert (lhs.shape, rhs.shape) == ((200, 2), (MAX_POINTS, 2))
    assert lhs[:, 0].max() < rhs[:, 0].min()
    assert projection.explained[0] > 0.8


def test_the_projection_is_that_of_numpys_decomposition():
    a, b = embeddings(), embeddings(seed=1)
    both = np.concatenate([a, b]).astype(float)
    _, sizes, _ = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)
    expected = (sizes**2 / (sizes**2).sum())[:2]
    assert compare_arrays(a, b).projection.explained == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros((3, 2)), np.zeros((3, 2))),
        (np.ones((3, 2)), np.full((3, 2), np.nan)),
        (np.ones(()), np.ones(3)),
        (np.zeros((0, 4)), np.ones((2, 4))),
        (np.array(["a"]), np.array(["b"])),
        (np.ones((2, 3)), np.ones((4, 5))),
        (np.ones((2, 1)), np.ones((2, 1))),
        (np.ones((1, 3)), np.ones((1, 3))),
        (np.ones((2, 2), np.complex64), np.ones((2, 2), np.complex64)),
    ],
)
def test_odd_arrays_are_described(a, b):
    found = compare_arrays(a, b)
    assert (found.lhs_shape, found.rhs_shape) == (a.shape, b.shape)
    assert found.projection is None
