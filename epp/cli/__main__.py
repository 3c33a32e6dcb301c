"""`python -m epp.cli`."""

import sys

from epp.cli import main

sys.exit(main())
