"""The card's random numbers: the counter generator Philox4x32-10, vectorised with NumPy.

A counter generator has no hidden state. Word ``i`` of the stream of a ``seed`` is a pure function
of ``(seed, i)``, so any unit may compute any stretch of the stream, in any order and on any number
of cores, and get the same numbers. How the words lie:

- the 64-bit seed is the key: its low 32 bits are key word 0, its high 32 bits key word 1;
- word ``i`` is lane ``i % 4`` of block ``i // 4``;
- a block's number is its counter: low 32 bits in counter word 0, high 32 bits in counter word 1;
  counter words 2 and 3 are zero;
- positions and seeds are taken modulo 2**64.

A device's generator counts words, not elements. An element of a draw takes a fixed number of
words (the constants below): element ``e`` of a draw that starts at word ``offset`` and takes ``k``
words an element uses words ``offset + k * e`` to ``offset + k * e + k - 1`` and no others.
The conversions below turn those words into numbers, each element by itself.

The function is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (SC 2011); the tests hold the known answers that their library Random123 publishes.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]
Longs: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]

LANES: Final = 4
ROUNDS: Final = 10
POSITIONS: Final = 1 << 64
# Words an element takes, where the element is a float by its bytes.
UNIFORM_WORDS: Final = MappingProxyType({4: 1, 8: 2})
NORMAL_WORDS: Final = MappingProxyType({4: 2, 8: 4})
INTEGER_WORDS: Final = 2

_WORD_MASK: Final = np.uint64(0xFFFFFFFF)
_WORD_BITS: Final = np.uint64(32)
_MULTIPLIERS: Final = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_BUMPS: Final = (0x9E3779B9, 0xBB67AE85)
# The three working arrays of this many blocks (128 KiB each) stay in a second-level cache.
_BLOCKS_AT_ONCE: Final = 8192


def random_bits(seed: int, offset: int, count: int) -> Words:
    """Return words ``offset`` to ``offset + count - 1`` of the stream of ``seed``.

    Args:
        seed: the key, taken modulo 2**64.
        offset: position of the first word, taken modulo 2**64.
        count: how many words.

    Returns:
        uint32 array of shape ``(count,)``.

    Raises:
        ValueError: ``count`` is negative.
    """
    if count < 0:
        raise ValueError(f"random_bits: asked for {count} words; a count cannot be negative")
    first, skipped = divmod(offset % POSITIONS, LANES)
    blocks = -(-(skipped + count) // LANES)
    key = (seed % POSITIONS & 0xFFFFFFFF, seed % POSITIONS >> 32)
    words = np.empty((blocks, LANES), dtype=np.uint32)
    for start in range(0, blocks, _BLOCKS_AT_ONCE):
        stop = min(start + _BLOCKS_AT_ONCE, blocks)
        numbers = np.arange(start, stop, dtype=np.uint64)
        numbers += np.uint64(first)
        numbers &= np.uint64(POSITIONS // LANES - 1)
        counters = np.zeros((LANES, stop - start), dtype=np.uint64)
        np.bitwise_and(numbers, _WORD_MASK, out=counters[0])
        np.right_shift(numbers, _WORD_BITS, out=counters[1])
        words[start:stop] = philox4x32(counters, key)
    return words.reshape(-1)[skipped : skipped + count]


def philox4x32(counters: Longs, key: tuple[int, int]) -> Longs:
    """Apply the ten rounds to every column of ``counters``.

    Args:
        counters: uint64 array of shape ``(4, blocks)``, each entry a 32-bit counter word.
        key: the two 32-bit key words.

    Returns:
        uint64 array of shape ``(blocks, 4)``, each entry a 32-bit word.
    """
    # Counter words 0 and 2 are multiplied; words 1 and 3 meet the products' high halves, crosswise.
    factors, met = counters[0::2].copy(), counters[1::2].copy()
    products = np.empty_like(factors)
    for round_key in _round_keys(key):
        np.multiply(factors, _MULTIPLIERS, out=products)
        np.bitwise_xor(met, round_key, out=met)
        np.right_shift(products, _WORD_BITS, out=factors)
        np.bitwise_xor(met, factors[::-1], out=met)
        np.bitwise_and(products, _WORD_MASK, out=products)
        factors, met, products = met, products[::-1], factors
    return np.stack((factors[0], met[0], factors[1], met[1]), axis=1)


@lru_cache(maxsize=16)
def _round_keys(key: tuple[int, int]) -> list[Longs]:
    return [
        np.array(
            [
                [(word + turn * bump) & 0xFFFFFFFF]
                for word, bump in zip(key, _KEY_BUMPS, strict=True)
            ],
            dtype=np.uint64,
        )
        for turn in range(ROUNDS)
    ]


def longs(words: Words) -> Longs:
    """Join neighbouring words, the earlier one low: ``(2 n,)`` uint32 to ``(n,)`` uint64."""
    pairs = words.reshape(-1, 2).astype(np.uint64)
    return pairs[:, 0] | (pairs[:, 1] << _WORD_BITS)


def uniform(words: Words, digits: int) -> Floats:
    """Return floats in [0, 1): the multiples of ``2**-digits``, which are exact in their format.

    Args:
        words: ``n`` words for up to 24 digits, ``2 n`` for up to 53.
        digits: significant bits, 1 to 53; up to 24 give float32, more give float64.
    """
    if digits <= 24:
        bits = words >> np.uint32(32 - digits)
        return bits.astype(np.float32) * np.float32(2.0**-digits)
    return (longs(words) >> np.uint64(64 - digits)).astype(np.float64) * 2.0**-digits


def open_uniform(words: Words, itemsize: int) -> Floats:
    """Return floats in (0, 1), neither end included, so that their logarithm is finite and not 0.

    They are the odd multiples of 2**-24 (itemsize 4) or of 2**-53 (itemsize 8): exact in their
    format, and symmetric about a half.

    Args:
        words: ``n`` words for float32, ``2 n`` for float64.
        itemsize: 4 or 8, bytes of the result's elements.
    """
    if itemsize == 4:
        return ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return ((longs(words) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal(words: Words, itemsize: int) -> Floats:
    """Return standard normal floats by Box and Muller's cosine, each from its own two uniforms.

    The sine half is not used: an element then needs nothing of its neighbour, so a draw can be cut
    anywhere. Farthest from zero are 5.76 (itemsize 4) and 8.57 (itemsize 8).

    Args:
        words: ``2 n`` words for float32, ``4 n`` for float64; an element's first half of words
            gives its radius, the second half its angle.
        itemsize: 4 or 8, bytes of the result's elements.
    """
    pairs = words.reshape(-1, 2, itemsize // 4)
    radius = np.ascontiguousarray(pairs[:, 0]).reshape(-1)
    angle = np.ascontiguousarray(pairs[:, 1]).reshape(-1)
    uniforms = open_uniform(radius, itemsize)
    two_pi = uniforms.dtype.type(2.0 * np.pi)
    turns = uniform(angle, 24 if itemsize == 4 else 53)
    return np.sqrt(uniforms.dtype.type(-2.0) * np.log(uniforms)) * np.cos(two_pi * turns)


def integers(words: Words, low: int, span: int) -> npt.NDArray[np.int64]:
    """Return int64 in ``[low, low + span)``: a 64-bit number modulo ``span``, plus ``low``.

    A value's probability is off by less than ``span / 2**64`` of itself.

    Args:
        words: ``2 n`` words.
        low: least value, in int64's range.
        span: how many values, 1 to 2**64; the last of them must be in int64's range.
    """
    numbers = longs(words)
    if span < POSITIONS:
        numbers %= np.uint64(span)
    numbers += np.uint64(low % POSITIONS)
    return numbers.view(np.int64)
