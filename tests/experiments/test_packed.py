"""Weights in few bytes come back close to what they were, and rows that are left out as zeros."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "text" / "packed.py"


@pytest.fixture(scope="module")
def packed():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("packed", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_matrices_are_rounded_by_row_and_rows_left_out_are_zeros(packed, tmp_path):
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(80, 16)).astype(np.float32) * rng.uniform(0.1, 9, (80, 1))
    vector = rng.normal(size=7).astype(np.float32)
    kept = np.arange(0, 80, 3)
    packed.pack({"m": matrix, "e": matrix, "v": vector}, tmp_path / "w.npz", {"e": kept})
    found = {name: value.numpy() for name, value in packed.unpack(tmp_path / "w.npz").items()}
    step = np.abs(matrix).max(axis=1, keepdims=True) / 63
    assert (np.abs(found["m"] - matrix) <= 0.51 * step).all()
    np.testing.assert_allclose(found["v"], vector, rtol=1e-3, atol=1e-4)
    assert found["e"].shape == matrix.shape
    assert not found["e"][1].any()
    few = found["e"][kept]  # fewer than 64 rows: in half precision
    np.testing.assert_allclose(few, matrix[kept], rtol=1e-3, atol=1e-3)


def test_blocks_of_four_bits_are_a_scale_a_minimum_and_halves_of_bytes(packed):
    levels = np.arange(32) % 16
    block = np.concatenate(
        [
            np.array([0.5, -2.0], np.float16).view(np.uint8),
            (levels[:16] | (levels[16:] << 4)).astype(np.uint8),
        ]
    )
    numbers = packed.blocks_to_numbers(np.tile(block, (3, 2)))
    np.testing.assert_array_equal(numbers, np.tile(0.5 * levels - 2.0, (3, 2)))
