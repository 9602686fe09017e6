#!/opt/lab/bin/python
"""LAB STAND-IN, not mongosh: answers the one question that the bundle's healthcheck asks.

Exit code 0 when this server is a writable primary, 1 when not, 2 for any other question.
"""

from __future__ import annotations

import sys

import pymongo
from pymongo.errors import PyMongoError

QUESTION = "quit(db.hello().isWritablePrimary ? 0 : 1)"


def main() -> int:
    if sys.argv[-1] != QUESTION:
        print(f"mongosh (lab stand-in): it can only evaluate {QUESTION}", file=sys.stderr)
        return 2
    try:
        with pymongo.MongoClient(
            "127.0.0.1", 27017, directConnection=True, serverSelectionTimeoutMS=3000
        ) as client:
            return 0 if client.admin.command("hello").get("isWritablePrimary") else 1
    except PyMongoError as error:
        print(f"mongosh (lab stand-in): {error}", file=sys.stderr)
        return 1


sys.exit(main())
