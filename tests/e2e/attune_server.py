"""Starts the server under test and stops it again."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ATTUNE_BINARY", str(ROOT / "build/release/attune"))
MODEL = os.environ.get("ATTUNE_MODEL", str(ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf"))
START_SECONDS = 120


class Server:
    """One `attune serve` on a free port."""

    def __init__(self, *arguments, environment=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--json", "--port", "0", "--model", MODEL, *arguments],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **(environment or {})})
        watchdog = threading.Timer(START_SECONDS, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        if not line:
            raise RuntimeError(f"the server did not start:\n{self.read_log()}")
        self.ready = json.loads(line)
        self.url = self.ready["url"]

    def read_log(self):
        if not self.log.closed:
            self.log.seek(0)
            self.text = self.log.read()
        return self.text

    def stop(self, seconds=15):
        """Sends SIGTERM; the exit code, or an error after `seconds`."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self.read_log()
            self.log.close()
        return code

    def kill(self):
        """SIGKILL, whatever it is doing; may be called again, and after stop()."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.read_log()
        self.log.close()

    def request(self, path, body=None, headers=None, method=None):
        """(status, body as JSON or text)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def metric(self, name, label=""):
        """The first sample of a metric that has the label."""
        for line in self.request("/metrics")[1].splitlines():
            if line.startswith(f"attune:{name}{{") and label in line:
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(f"{name} {label}")


class ServerCase(unittest.TestCase):
    """One server for all tests of a class; every page must be free again after each."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}:\n{cls.server.read_log()}")

    def wait_for(self, condition, seconds=10):
        """Asks until `condition()` holds."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            pause.wait(0.02)
        self.fail("it did not come about in time")
