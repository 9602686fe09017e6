"""Adds up the JUnit reports named on the command line and prints the number of tests."""

import os
import sys
from xml.etree import ElementTree


def main(paths: list[str]) -> int:
    total = failed = skipped = 0
    for path in filter(os.path.isfile, paths):  # a lane that could not start left none
        for suite in ElementTree.parse(path).iter("testsuite"):
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
