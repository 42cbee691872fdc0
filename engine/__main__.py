"""`python -m edgegrad`, the command line without its script."""

import sys

from engine.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
