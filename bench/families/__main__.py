"""`python -m bench.families`."""

import sys

from bench.families.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
