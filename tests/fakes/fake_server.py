"""A stand-in for an engine's server, with an engine's ways to fail. Standard library alone."""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "fake"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--die-before-ready", action="store_true")
    parser.add_argument("--die-after", type=float)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--child", action="store_true", help="start a child in the group")
    parser.add_argument("--escaped-child", action="store_true", help="and one outside of it")
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
    if options.child:
        print(f"child {subprocess.Popen(sleep).pid}", flush=True)
    if options.escaped_child:
        print(f"child {subprocess.Popen(sleep, start_new_session=True).pid}", flush=True)
    print("Loading weights", flush=True)
    if options.die_before_ready:
        sys.exit("CUDA error: out of memory (not really)")
    if options.never_ready:
        time.sleep(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    if options.die_after is not None:
        threading.Timer(options.die_after, lambda: os._exit(7)).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
