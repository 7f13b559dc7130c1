"""`python -m spotlessnet.cli` is `spotless`."""

import sys

from spotlessnet.cli.entry import main

sys.exit(main())
