"""A judge on loopback: a real HTTP server with OpenAI's chat-completions interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROBE = "Reply with exactly this"


@contextmanager
def serve(reply: Callable[[str], str | int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answer with what `reply` makes of the question's last message; a number is an HTTP status.

    Yields the base URL, and the list into which every request's body goes (the probe's not).
    """
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = body["messages"][-1]["content"]
            if not question.startswith(PROBE):
                asked.append(body)
            words = "{'score': 5}" if question.startswith(PROBE) else reply(question)
            status, words = (words, "") if isinstance(words, int) else (200, words)
            content = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
            content["choices"] = [{"index": 0, "message": {"role": "assistant", "content": words}}]
            payload = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
