"""The inner side of a WorkerProcess: requests come as lines of JSON on stdin, and replies leave on what was stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Reply = dict[str, Any]
Answer = Callable[[dict[str, Any]], Reply]
Say = Callable[[str], None]


def serve(made: Callable[[Say], Answer]) -> None:
    """Answers one request after another, by what `made` gives; never returns.

    `made` gets a function that says what is being done, such as "probe 'ragged'": whoever waits then knows where a
    process died, and that it lives. A reply may be {"rejected": a Rejected's fields}. An exception becomes the reply
    {"error", "traceback"}.
    """
    # What a kernel or a library prints must not mix with replies: stdout becomes stderr, replies get a copy.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(reply: Reply) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    answer = made(lambda doing: send({"doing": doing}))
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        send({"doing": ""})  # the request is read: how this process ends is its business from here on
        try:
            reply = answer(json.loads(request))
        except Exception as error:  # the process that asked raises it
            reply = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        send(reply)


def _read(requests: SimpleQueue[str]) -> None:
    """When stdin ends, whoever asked is gone: a kernel that never ends must not outlive it."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)
