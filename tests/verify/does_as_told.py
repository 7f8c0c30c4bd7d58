"""What test_process.py asks: a program that does the statements it is sent, and imports nothing slow."""

from __future__ import annotations

import json
from typing import Any

from flashgen.verify.serving import Reply, Say, serve


def made(say: Say) -> Any:
    held: dict[str, Any] = {"say": say}

    def answer(request: dict[str, Any]) -> Reply:
        exec(request["do"], held)  # what is kept between requests shows whether the process is still the same
        reply: Reply = json.loads(json.dumps(held.get("reply", {})))
        return reply

    return answer


if __name__ == "__main__":
    serve(made)
