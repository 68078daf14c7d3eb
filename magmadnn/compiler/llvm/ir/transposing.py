"""Square blocks of elements, in as many vectors, turned."""

from __future__ import annotations

from .builder import Code, Value, item_bytes

_WORD_BYTES = 16  # transposition works on 128-bit words last: shuffles inside them are cheapest


def transposed(code: Code, rows: list[Value]) -> list[Value]:
    """The square block `rows` of n vectors of n lanes turned: result[i][j] = rows[j][i].

    First words of 128 bits change places between vectors, then elements inside the words.
    """
    n = len(rows)
    word = _WORD_BYTES // item_bytes(rows[0].type)
    size = n // 2
    while size >= word:
        rows = _swap_blocks(code, rows, size)
        size //= 2
    groups = [_turn_words(code, rows[at : at + word], word) for at in range(0, n, word)]
    return [vector for group in groups for vector in group]


def _swap_blocks(code: Code, rows: list[Value], size: int) -> list[Value]:
    """Exchange the off-diagonal blocks of `size` lanes between vectors `size` apart."""
    n, made = len(rows), list(rows)
    chunks = range(0, n, 2 * size)
    low = [lane for c in chunks for lane in (*range(c, c + size), *range(n + c, n + c + size))]
    high = [lane + size for lane in low]
    for i in range(n):
        if i & size == 0:
            made[i] = code.shuffle(rows[i], rows[i + size], low)
            made[i + size] = code.shuffle(rows[i], rows[i + size], high)
    return made


def _turn_words(code: Code, rows: list[Value], word: int) -> list[Value]:
    """Transpose the blocks of `word` x `word` elements that `word` vectors have side by side."""
    if word == 2:
        return _interleaved(code, rows[0], rows[1], word, 1)
    low, high = (_interleaved(code, rows[i], rows[i + 1], word, 1) for i in (0, 2))
    return [x for a, b in zip(low, high, strict=True) for x in _interleaved(code, a, b, word, 2)]


def _interleaved(code: Code, a: Value, b: Value, word: int, chunk: int) -> list[Value]:
    """The lower halves of the words of a and b, `chunk` lanes of each in turn, and the upper ones."""
    lanes, half = int(a.type.count), word // 2

    def order(first: int) -> list[int]:
        starts = [c for w in range(first, lanes, word) for c in range(w, w + half, chunk)]
        return [
            x for c in starts for x in (*range(c, c + chunk), *range(lanes + c, lanes + c + chunk))
        ]

    return [code.shuffle(a, b, order(0)), code.shuffle(a, b, order(half))]
