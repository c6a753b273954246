"""The range coder: compiled code writes and reads what the library does, bit for bit."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import LEVELS

from efl.errors import WireError
from efl.native import Loops, load
from efl.wire import range_coder
from efl.wire.range_coder import LARGEST, Coded, Magnitudes, Whole, decoded, encoded, symbols_of

Numbers = tuple[Whole, Magnitudes, Whole]
Chosen = Callable[[Loops | None], None]


@pytest.fixture(scope="module", params=LEVELS)
def compiled(request: pytest.FixtureRequest) -> Loops:
    return load(request.param)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    return lambda kind: monkeypatch.setattr(range_coder, "loaded", lambda: kind)


@st.composite
def numbers(draw: st.DrawFn) -> Numbers:
    """Places in classes of any size and density, from none to all, with magnitudes that are mostly small."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 20_000)), min_size=1, max_size=5))
    bounds = np.cumsum([0, *sizes])
    dense = [random.random(size) < draw(st.sampled_from([0, 1e-4, 0.01, 0.3, 0.9, 1])) for size in sizes]
    places = np.flatnonzero(np.concatenate(dense))
    spread = draw(st.sampled_from([0, 1, 9, 29]))
    magnitudes = np.exp2(random.random(len(places)) ** 4 * spread).astype(np.int32) - 1
    if draw(st.booleans()) and len(magnitudes):
        magnitudes[-1] = LARGEST
    return places, magnitudes, bounds


@given(numbers())
def test_both_coders_write_and_read_the_same(compiled: Loops, numbers: Numbers) -> None:
    places, magnitudes, bounds = numbers
    with pytest.MonkeyPatch.context() as patch:
        written = []
        for kind in (None, compiled):
            patch.setattr(range_coder, "loaded", lambda kind=kind: kind)
            written.append(encoded(places, magnitudes, bounds))
        assert [coded.words.tobytes() for coded in written[1:]] == [written[0].words.tobytes()]
        assert written[1].taken.tolist() == written[0].taken.tolist()
        assert written[1].occur.tolist() == written[0].occur.tolist()
        for kind in (None, compiled):
            patch.setattr(range_coder, "loaded", lambda kind=kind: kind)
            found, symbols = decoded(written[0], bounds)
            assert found.tolist() == places.tolist()
            assert symbols.tolist() == symbols_of(magnitudes).tolist()


@pytest.mark.parametrize("native", [False, True])
@given(random=st.randoms(use_true_random=False))
def test_words_that_nobody_wrote_are_read_or_refused(compiled: Loops, native: bool, random: object) -> None:
    dice = np.random.default_rng(hash(random) % 2**32)
    bounds = np.array([0, 50, 3000])
    occur = dice.integers(0, 30, 6)
    taken = np.array([min(50, occur.sum() // 2), occur.sum() - min(50, occur.sum() // 2)])
    words = dice.integers(0, 2**32, int(dice.integers(0, 60)), dtype=np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_coder, "loaded", lambda: compiled if native else None)
        try:
            places, symbols = decoded(Coded(taken, occur, words), bounds)
        except (WireError, ValueError, AssertionError):
            return
        assert len(places) == len(symbols) == taken.sum()
        assert (np.diff(places, prepend=-1, append=3000) > 0).all()


def test_a_symbol_that_occurs_never_is_no_table(compiled: Loops, choose: Chosen) -> None:
    coded = Coded(np.array([0]), np.zeros(4, np.int64), np.zeros(0, np.uint32))
    choose(compiled)
    with pytest.raises(WireError):
        decoded(coded, np.array([0, 10]))
