"""Every prefix length with every number of new tokens, for a depth sweep without a trace."""

from collections.abc import Sequence

from fakeprefix.errors import TraceError
from fakeprefix.trace.steps import Step


def grid_steps(prefix_tokens: Sequence[int], new_tokens: Sequence[int]) -> list[Step]:
    """One step for each pair, text only; the task is the number of new tokens.

    Raises:
        TraceError: a list is empty or contains a value twice.
    """
    for name, values in (("prefix_tokens", prefix_tokens), ("new_tokens", new_tokens)):
        if not values:
            raise TraceError(f"trace.grid.{name}: is empty")
        if len(set(values)) != len(values):
            raise TraceError(f"trace.grid.{name}: contains a value twice")
    return [
        Step(f"grid-{new}", number, prefix, new, visible=((0, prefix - 1),) if prefix else ())
        for new in new_tokens
        for number, prefix in enumerate(prefix_tokens)
    ]
