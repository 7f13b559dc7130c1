"""`python -m spotlessnet` is `spotless`."""

import sys

from spotlessnet.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
