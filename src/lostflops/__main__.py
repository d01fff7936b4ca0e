"""`python -m lostflops` is `lostflops`."""

import sys

from lostflops.cli import main

sys.exit(main())
