"""Spreading bytes against all there is to choose."""

import itertools
import random

import pytest

from slimgrad.kept.allocation import spread


def total(items, chosen):
    picked = [item[choice] for item, choice in zip(items, chosen, strict=True)]
    return sum(num_bytes for num_bytes, _ in picked), sum(error for _, error in picked)


def least(items, room):
    """The least error within the room, by trying all."""
    every = itertools.product(*(range(len(item)) for item in items))
    found = (total(items, chosen) for chosen in every)
    return min(error for num_bytes, error in found if num_bytes <= room)


def some_items(draw, convex):
    """As tensors have them, with errors that fall sixteenfold or so; or anything at all."""
    items = []
    for _ in range(draw.randint(1, 6)):
        size, weight = draw.randint(1, 40), 10 ** draw.uniform(-3, 3)
        errors = [weight, weight / draw.uniform(4, 40), weight / 300, 0.0]
        if not convex:
            errors = [draw.uniform(0, weight) for _ in range(4)]
        items.append(list(zip((2 * size, 4 * size, 8 * size, 32 * size), errors, strict=True)))
    return items


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_much_better(seed, convex):
    """Of as many bytes as are used before the first step that does not fit, nothing is better; in
    all of the room at most by what one step saves."""
    draw = random.Random(seed)
    items = some_items(draw, convex)
    smallest, largest = (sum(item[i][0] for item in items) for i in (0, -1))
    room = draw.randint(smallest, largest)
    num_bytes, error = total(items, spread(items, room))
    assert num_bytes <= room
    most = max(item[a][1] - item[b][1] for item in items for a in range(4) for b in range(a, 4))
    assert least(items, room) <= error + 1e-9 <= least(items, room) + most + 2e-9
    # As much room as a multiplier leaves: where no step is refused, the result is the best.
    used = num_bytes
    assert total(items, spread(items, used))[1] == pytest.approx(error)


@pytest.mark.parametrize("seed", range(50))
def test_without_a_step_refused_it_is_the_best(seed):
    """Items of one size with two choices: every step fits or none does."""
    draw = random.Random(seed)
    items = [[(2, draw.random() + 1), (4, draw.random())] for _ in range(8)]
    for room in range(16, 33, 2):
        num_bytes, error = total(items, spread(items, room))
        assert num_bytes == room and error == pytest.approx(least(items, room))


def test_edges():
    items = [[(4, 1.0), (8, 0.5)], [(4, 0.0), (8, 0.0)]]
    assert spread(items, 1) == [0, 0]  # does not fit, and there is nothing smaller
    assert spread(items, 100) == [1, 0]  # what saves no error is not bought
    assert spread([], 10) == []
    assert spread([[(4, 1.0)]], 10) == [0]
    # A step that the hull leaves out: from 2 to 8 saves more for a byte than from 2 to 4.
    assert spread([[(2, 10.0), (4, 9.9), (8, 0.0)]], 7) == [0]
