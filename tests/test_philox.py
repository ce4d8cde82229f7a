"""The Philox stream: known answers, positions, and the numbers made from its words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre_ref.emulator import philox

# kat_vectors of Random123: counter words, key words, answer.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_the_rounds_give_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    counters = np.array(counter, dtype=np.uint64).reshape(4, 1)
    assert tuple(philox.philox4x32(counters, key)[0]) == answer


def test_the_rounds_leave_their_counters_alone() -> None:
    counters = np.arange(8, dtype=np.uint64).reshape(4, 2)
    philox.philox4x32(counters, (1, 2))
    assert counters.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def one_word(seed: int, position: int) -> int:
    """A word by the definition, one Python integer at a time."""
    block = position // 4
    c0, c1, c2, c3 = block & 0xFFFFFFFF, block >> 32, 0, 0
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return (c0, c1, c2, c3)[position % 4]


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 40))
def test_a_word_depends_on_seed_and_position_only(seed: int, offset: int, count: int) -> None:
    words = philox.random_bits(seed, offset, count)
    assert words.dtype == np.uint32
    assert words.tolist() == [one_word(seed, (offset + i) % 2**64) for i in range(count)]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_stream_may_be_cut_anywhere(offset: int, cut: int) -> None:
    whole = philox.random_bits(7, offset, 100_000)
    parts = philox.random_bits(7, offset, cut), philox.random_bits(7, offset + cut, 100_000 - cut)
    assert np.array_equal(whole, np.concatenate(parts))


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="-3 words"):
        philox.random_bits(0, 0, -3)


def extreme(*words: int) -> philox.Words:
    return np.array(words, dtype=np.uint32)


@pytest.mark.parametrize("digits", [8, 11, 24, 53])
def test_uniforms_lie_in_the_half_open_unit_interval(digits: int) -> None:
    ones = [0xFFFFFFFF] * (1 if digits <= 24 else 2)
    zeros = [0] * len(ones)
    low, high = philox.uniform(extreme(*zeros, *ones), digits)
    assert low == 0.0
    assert high == 1.0 - 2.0**-digits
    assert high < 1.0


@pytest.mark.parametrize(("itemsize", "grain"), [(4, 2.0**-24), (8, 2.0**-53)])
def test_open_uniforms_include_neither_end(itemsize: int, grain: float) -> None:
    ones = [0xFFFFFFFF] * (itemsize // 4)
    zeros = [0] * len(ones)
    low, high = philox.open_uniform(extreme(*zeros, *ones), itemsize)
    assert (low, high) == (grain, 1.0 - grain)
    # An exponential draw of a half format must not round to zero: log() of it is taken next.
    assert itemsize == 8 or np.float16(-np.log(high)) > 0


@pytest.mark.parametrize(("itemsize", "dtype"), [(4, np.float32), (8, np.float64)])
def test_moments_are_those_of_the_distribution(itemsize: int, dtype: type) -> None:
    count = 400_000
    bits = philox.random_bits(3, 0, count * philox.NORMAL_WORDS[itemsize])
    normals = philox.normal(bits, itemsize)
    assert normals.dtype == dtype
    assert normals.shape == (count,)
    assert abs(normals.mean()) < 0.01
    assert abs(normals.std() - 1.0) < 0.01
    assert abs((normals**3).mean()) < 0.03
    assert abs((normals**4).mean() - 3.0) < 0.06
    uniforms = philox.open_uniform(bits[: count * (itemsize // 4)], itemsize)
    assert abs(uniforms.mean() - 0.5) < 0.002
    assert abs(uniforms.var() - 1 / 12) < 0.001


def test_a_normal_is_made_from_its_own_words_only() -> None:
    bits = philox.random_bits(5, 0, 2000)
    whole = philox.normal(bits, 4)
    assert np.array_equal(whole[300:700], philox.normal(bits[600:1400], 4))


@pytest.mark.parametrize(
    ("low", "span"), [(0, 1), (-5, 11), (-(2**63), 2**64), (-(2**63), 2**63), (2**62, 2**62)]
)
def test_integers_stay_in_their_range(low: int, span: int) -> None:
    values = philox.integers(philox.random_bits(1, 0, 20_000), low, span)
    assert values.dtype == np.int64
    assert low <= int(values.min()) <= int(values.max()) < low + span


def test_every_integer_of_a_small_range_is_as_frequent() -> None:
    values = philox.integers(philox.random_bits(2, 0, 2 * 110_000), -5, 11)
    counts = np.bincount(values + 5, minlength=11)
    assert len(counts) == 11
    assert np.all(np.abs(counts - 10_000) < 500)
