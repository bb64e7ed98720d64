"""The order in which compared arms take turns."""

import random
from collections.abc import Iterator


def williams_design(n: int) -> list[list[int]]:
    """Orders of `n` things in which each stands at every place, and behind every other, equally often.

    Williams, Experimental designs balanced for the estimation of residual effects of treatments,
    Australian Journal of Scientific Research A 2 (1949): a cyclic square for even `n`, two for odd `n`.

    Returns:
        `n` orders for even `n`, `2 n` for odd `n` above 1.
    """
    first, low, high = [], 0, n - 1
    for place in range(n):
        if place % 2 == 0:
            first.append(low)
            low += 1
        else:
            first.append(high)
            high -= 1
    square = [[(item + shift) % n for item in first] for shift in range(n)]
    return square if n % 2 == 0 or n == 1 else square + [order[::-1] for order in square]


def balanced_orders(n: int, seed: str) -> Iterator[list[int]]:
    """Endless orders of `n` things: designs one after another, each with other names and in another sequence."""
    rng = random.Random(seed)
    while True:
        names = list(range(n))
        rng.shuffle(names)
        design = williams_design(n)
        rng.shuffle(design)
        for order in design:
            yield [names[item] for item in order]
