# SPDX-License-Identifier: Apache-2.0
"""Turns of two servers that a test plays."""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

import serving

PLAYED = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["ignore_eos"] and len(asked["prompt"]) in (32, 256)
        body = json.dumps({"usage": {"completion_tokens": asked["max_tokens"] - SHORT}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer.request_queue_size = 64
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("ready", f"http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
"""


def worker_program(folder, short):
    path = pathlib.Path(folder) / f"worker-{short}"
    path.write_text(f"#!{sys.executable}\n" + PLAYED.replace("SHORT", str(short)))
    path.chmod(0o755)
    return str(path)


class Serving(unittest.TestCase):
    def records(self, own_short, peer_short):
        with tempfile.TemporaryDirectory() as folder:
            own, peer = worker_program(folder, own_short), worker_program(folder, peer_short)
            arguments = argparse.Namespace(program=own, model="m", runs=1, threads=1)

            def make_peer(_, kv, model):
                return serving.Worker(argparse.Namespace(program=peer, threads=1), "engine", kv, model)

            with contextlib.redirect_stderr(io.StringIO()):
                return list(
                    serving.run_engine(
                        arguments, "e:kv", "e", "kv", serving.as_given, make_peer, "the other"
                    )
                )

    def test_each_number_at_once_the_gain_and_the_first_token_are_told(self):
        records = self.records(0, 0)
        self.assertEqual(
            [record["case"].removeprefix("e:kv, ") for record in records],
            ["1 at once", "4 at once", "16 at once", "gain of 16 over 1", "first token of 256 at idle"],
        )
        for record in records:
            self.assertIn(record["ok"], (True, False))
            json.dumps(record)
        self.assertEqual(records[0]["runs"], 1)
        self.assertEqual([record["bar"] for record in records], [">= 0.95"] * 4 + ["<= 1.05"])

    def test_an_answer_that_is_too_short_is_no_figure(self):
        for shorts in ((1, 0), (0, 1)):
            (record,) = self.records(*shorts)
            self.assertIsNone(record["ok"])
            self.assertIn("not run: status 200", record["reference"])


if __name__ == "__main__":
    unittest.main()
