"""`python -m framework.study DIR` writes the report of a study again, from its raw runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from framework.mistakes import ConfigError


def main() -> int:
    """Exit codes: 0 done, 2 the folder holds no study."""
    parser = argparse.ArgumentParser(prog="python -m framework.study", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of a study, which has its plan.json")
    folder = parser.parse_args().folder
    from framework.study.render import report  # scipy is slow to import

    try:
        report(folder)
    except ConfigError as error:
        print(f"gearshift: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
