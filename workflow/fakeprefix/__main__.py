"""``python -m fakeprefix``, the same as the command ``fakeprefix``."""

import sys

from fakeprefix.cli import main

sys.exit(main())
