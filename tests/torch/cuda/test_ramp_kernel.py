"""Ramps: kernels compute what PyTorch's operations do, here by Triton's interpreter."""

import pytest
import torch
from torch import nn

from ttamer.torch.cuda import branching
from ttamer.torch.cuda.branching import counters, counters_of
from ttamer.torch.cuda.ramp_kernel import MAX_CLASSES, is_norm, run_ramp
from ttamer.torch.early_exit import POOLS, Ramp, pooled

SHAPES = ((1, 5, 3), (4, 70, 33), (3, 300, 64), (2, 1, 100), (5, 17, 48))
CPU = torch.device("cpu")


def value_of(rows, tokens, width, *, seed=0, dtype=torch.float32):
    """Return hidden states and a mask: rows of all tokens, of none, of one, and of some."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, tokens, width, generator=generator) + 0.5
    lengths = torch.randint(0, tokens + 1, (rows, 1), generator=generator)
    lengths[0] = tokens
    lengths[1:3] = torch.tensor([[0], [1]])[: rows - 1]
    return hidden.to(dtype), torch.arange(tokens) < lengths


def ramp_of(kind, pool, width, classes, dtype):
    """Return a ramp whose weights are all random."""
    norms = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
    before = {
        "none": (),
        "dense": (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.5)),
        "two": (nn.Linear(width, width), nn.ReLU()),
        "unbiased": (nn.LayerNorm(width, bias=False),),
    }
    layers = (norms[kind](width),) if kind in norms else before[kind]
    last = nn.Linear(width, classes, bias=kind != "unbiased")
    ramp = Ramp(*layers, last, pool=pool)
    for parameter in ramp.parameters():
        nn.init.normal_(parameter, mean=0.3, std=width**-0.5)
    return ramp.to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["none", "layer", "rms", "dense", "two", "unbiased"])
@pytest.mark.parametrize("pool", POOLS)
def test_kernels_answer_as_the_layers_of_a_ramp_do(pool, kind, dtype):
    # Triton's interpreter cuts numbers off where GPUs round them.
    least = 4e-6 if dtype == torch.float32 else 2**-4
    for seed, (rows, tokens, width) in enumerate(SHAPES):
        torch.manual_seed(seed)
        ramp = ramp_of(kind, pool, width, classes=seed + 1, dtype=dtype)
        hidden, mask = value_of(rows, tokens, width, seed=seed, dtype=dtype)
        with torch.inference_mode():
            for given in (mask, None):
                found = run_ramp(ramp.layers, hidden, given, pool)
                wanted = ramp.layers(pooled(hidden.float(), given, pool).to(dtype))
                assert found.dtype == wanted.dtype
                torch.testing.assert_close(found, wanted, rtol=least, atol=least)


def test_autocast_decides_the_type_of_logits():
    # Numbers that half precision holds: the interpreter cuts others off where GPUs round them.
    hidden, mask = value_of(3, 20, 40, dtype=torch.bfloat16)
    torch.manual_seed(0)
    ramp = ramp_of("none", "first", 40, 2, torch.bfloat16).float()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (
            run_ramp(ramp.layers, hidden.float(), mask, "first"),
            ramp((hidden.float(), mask)),
        )
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2**-7)


def test_more_classes_or_rows_than_kernels_take(monkeypatch):
    hidden, mask = value_of(5, 9, 8)
    many = Ramp(nn.LayerNorm(8), nn.Linear(8, MAX_CLASSES + 1), pool="mean").eval()
    few = Ramp(nn.LayerNorm(8), nn.Linear(8, 2), pool="mean").eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            run_ramp(many.layers, hidden, mask, "mean"), many((hidden, mask))
        )
        monkeypatch.setattr(branching, "MAX_COUNTERS", 4)
        torch.testing.assert_close(run_ramp(few.layers, hidden, mask, "mean"), few((hidden, mask)))


def test_counters_are_left_at_zero_and_have_one_owner():
    hidden, mask = value_of(5, 9, 80)
    layers = nn.Sequential(nn.Linear(80, 2))
    with torch.inference_mode():
        first = run_ramp(layers, hidden, mask, "mean")
        with counters_of("other"):
            other = counters(5, CPU)
            assert torch.equal(run_ramp(layers, hidden, mask, "mean"), first)
            assert counters(5, CPU) is other
        assert torch.equal(run_ramp(layers, hidden, mask, "mean"), first)
    assert counters(5, CPU) is not other
    assert not other.any()
    assert not counters(5, CPU).any()


def test_layers_that_compute_something_else_are_left_to_pytorch():
    class Scaled(nn.Linear):
        def forward(self, vectors):
            return 3 * super().forward(vectors)

    class Shifted(nn.LayerNorm):
        def forward(self, vectors):
            return 1 + super().forward(vectors)

    hidden, mask = value_of(5, 9, 8)
    with torch.inference_mode():
        for layers in ((nn.LayerNorm(8), Scaled(8, 2)), (Shifted(8), nn.Linear(8, 2))):
            ramp = Ramp(*layers, pool="mean").eval()
            torch.testing.assert_close(
                run_ramp(ramp.layers, hidden, mask, "mean"), ramp((hidden, mask))
            )


def test_norms_without_weights_are_left_to_pytorch():
    assert is_norm(nn.LayerNorm(4))
    assert is_norm(nn.RMSNorm(4))
    assert not is_norm(nn.LayerNorm(4, elementwise_affine=False))
    assert not is_norm(nn.LayerNorm((2, 4)))
    assert not is_norm(nn.Linear(4, 4))


def test_the_last_token_counts_where_padding_comes_first():
    hidden, mask = value_of(4, 9, 8)
    flipped = mask.flip(1)
    layers = nn.Sequential(nn.Linear(8, 2))
    with torch.inference_mode():
        logits = run_ramp(layers, hidden, flipped, "last")
        torch.testing.assert_close(logits, layers(pooled(hidden, flipped, "last")))


def test_only_means_and_last_tokens_read_a_mask():
    assert Ramp(nn.Linear(4, 2)).mask is None is Ramp(nn.Linear(4, 2), pool="first").mask
    assert Ramp(nn.Linear(4, 2), pool="last", mask=3).mask == 3


def test_a_mask_may_have_more_or_fewer_positions_than_there_are_tokens():
    hidden = torch.tensor([[[1.0], [3.0], [8.0]]])
    more = torch.arange(8)[None] < 4  # of these, two tokens begin before the end
    fewer = torch.tensor([[1, 1]])  # the model has added the last token
    for mask in (more, fewer):
        read = {pool: Ramp(pool=pool)((hidden, mask)).item() for pool in POOLS}
        assert read == {"first": 1.0, "mean": 2.0, "last": 3.0}
