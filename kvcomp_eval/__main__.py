"""``python -m kvcomp_eval``: the command line, for launchers that start modules."""

import sys

from kvcomp_eval.cli import main

sys.exit(main())
