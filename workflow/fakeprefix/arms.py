"""The arms: ways of making a step's prefix present. One entry says all that the rest of the package asks of one.

A new arm is an entry here, a function that makes its request (`fakeprefix.measure.requests`) and a rule
``measure_<name>``.
"""

from dataclasses import dataclass

BASELINE, FAKE_PREFIX, STATE_RESTORE, CACHED_PREFIX = "baseline", "fake_prefix", "state_restore", "cached_prefix"

# rows that are no arm of their own: the fixed request of every job, and real prefills of a prefix
PROBE, PRIME = "probe", "prime"

# jobs that are no arm's: turns of all of them over one prefix length, and the independent benchmark
FIDELITY, DEPTH_RATE = "fidelity", "depth_rate"

# contents of fabricated cells
FILLS = ("zero", "random", "tile")

# Okabe and Ito, Color Universal Design (2008): told apart with every kind of colour blindness
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


@dataclass(frozen=True)
class Arm:
    """A way of making the prefix present before the new tokens are prefilled.

    Attributes:
        name: in settings, files and columns.
        words: what its prefix is called in sentences and tables.
        label: what its figures are called in plots.
        colour, marker: in plots; a marker of its own for print in black and white.
        prefix_source: what the server must say of a prefix that is not empty: ``none``, ``fake``, ``restored``
            or ``cached``. With ``none`` everything is computed: the counts must be 0 present and L + new
            computed; else exactly L present and exactly the new tokens computed.
        fabricates: needs a memory whose cells can be fabricated.
        keeps_state: a prefix is computed once for each length and its state kept beside the context.
        prefills_every_time: every repetition prefills the prefix too, in its own time or in front of it.
        is_reference: its prefix is a really computed one, so a fabricated one is compared with it.
    """

    name: str
    words: str
    label: str
    colour: str
    marker: str
    prefix_source: str
    fabricates: bool = False
    keeps_state: bool = False
    prefills_every_time: bool = False
    is_reference: bool = False

    @property
    def has_prefix(self) -> bool:
        """The prefix is present before the clock starts."""
        return self.prefix_source != "none"

    @property
    def needs_genuine_prefix(self) -> bool:
        """The prefix has to be prefilled, which may be unaffordable where it is long."""
        return not self.fabricates


# in the order in which they are shown; of those that have the prefix the first measured one is compared
# with the estimate
_ALL = (
    Arm(BASELINE, "whole prompt", "whole prompt", ORANGE, "s", "none", prefills_every_time=True),
    Arm(FAKE_PREFIX, "fabricated", "over a fabricated prefix", BLUE, "o", "fake", fabricates=True),
    Arm(
        STATE_RESTORE,
        "restored",
        "over a restored prefix",
        GREEN,
        "^",
        "restored",
        keeps_state=True,
        is_reference=True,
    ),
    Arm(
        CACHED_PREFIX,
        "cached",
        "over a cached prefix",
        PURPLE,
        "D",
        "cached",
        prefills_every_time=True,
        is_reference=True,
    ),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _ALL}
PREFIXED: tuple[str, ...] = tuple(arm.name for arm in _ALL if arm.has_prefix)
REFERENCES: tuple[str, ...] = tuple(arm.name for arm in _ALL if arm.is_reference)
