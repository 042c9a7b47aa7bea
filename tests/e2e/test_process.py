"""The process: start, keys, signals, addresses that are taken."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from attune_server import BINARY, MODEL, Server


class ProcessTest(unittest.TestCase):
    def test_key(self):
        server = Server("--api-key", "s3cret")
        try:
            self.assertEqual(server.request("/health")[0], 200)
            status, body = server.request("/v1/models")
            self.assertEqual((status, body["error"]["code"]), (401, "invalid_api_key"))
            key = {"Authorization": "Bearer s3cret"}
            self.assertEqual(server.request("/v1/models", headers=key)[0], 200)
            self.assertNotIn("s3cret", json.dumps(server.request("/get_server_info", headers=key)[1]))
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertNotIn("s3cret", server.read_log())

    def test_term_lets_the_running_stream_end(self):
        server = Server()
        body = json.dumps({"text": "Once upon a time", "stream": True,
                           "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}}).encode()
        with urllib.request.urlopen(server.url + "/generate", body) as stream:
            self.assertTrue(stream.readline().startswith(b"data: "))
            stopper = threading.Thread(target=lambda: self.assertEqual(server.stop(), 0))
            stopper.start()
            events = [line for line in stream.read().decode().split("\n\n") if line.strip()]
        stopper.join()
        self.assertEqual(events[-1], "data: [DONE]")
        self.assertEqual(json.loads(events[-2][6:])["meta_info"]["completion_tokens"], 16)

    def test_term_ends_within_ten_seconds(self):
        server = Server()
        body = json.dumps({"text": "Once upon a time", "stream": True, "sampling_params":
                           {"max_new_tokens": 8000, "ignore_eos": True}}).encode()
        with urllib.request.urlopen(server.url + "/generate", body) as stream:
            self.assertTrue(stream.readline().startswith(b"data: "))
            # The stream is read on meanwhile: what it repeats (the whole text, in every event) soon
            # fills any socket, and a client that does not read is cut off at the end.
            rest = []
            reader = threading.Thread(target=lambda: rest.append(stream.read()))
            reader.start()
            begin = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - begin, 10)
            reader.join()
        self.assertIn(b"shutting down", rest[0])

    def test_a_model_file_that_shrinks_is_not_missed(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.gguf")
            shutil.copyfile(MODEL, model)
            server = Server("--model", model)
            ask = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
            before = server.request("/generate", ask)[1]["text"]
            os.truncate(model, 0)
            self.assertEqual(server.request("/generate", ask)[1]["text"], before)
            self.assertEqual(server.request("/generate", {**ask, "text": "Other words"})[0], 200)
            self.assertEqual(server.stop(), 0)

    def test_address_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            result = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", port],
                                    capture_output=True, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(port, result.stderr)
        self.assertIn("--port", result.stderr)

    def test_idle_connections_cost_no_threads(self):
        server = Server()
        tasks = f"/proc/{server.process.pid}/task"
        before = len(os.listdir(tasks))
        address = ("127.0.0.1", server.ready["port"])
        sockets = [socket.create_connection(address) for _ in range(500)]
        self.assertEqual(server.request("/health")[0], 200)
        self.assertEqual(len(os.listdir(tasks)), before)
        for connection in sockets:
            connection.close()
        self.assertEqual(server.stop(), 0)
