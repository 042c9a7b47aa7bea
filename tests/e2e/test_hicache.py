"""The hierarchical cache from outside: what leaves the device comes back from host and storage, and
every answer is that of a server without it."""
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.request

from attune_server import BINARY, MODEL, Server

PAGE = 16
# Deterministic: a prefix that was found gives the same bits as one that was computed.
COMMON = ("--device", "cpu", "--page-size", str(PAGE), "--enable-deterministic-inference")
DEVICE_TOKENS = 1280
HICACHE = (*COMMON, "--enable-hierarchical-cache", "--max-total-tokens", str(DEVICE_TOKENS),
           "--hicache-ratio", "3", "--hicache-storage-prefetch-policy", "wait_complete")
WORDS = ("river stone lantern copper window market silver garden winter letter engine island "
         "planet bridge velvet thunder paper candle harbor forest").split()
ANSWER_TOKENS = 12


def prompt(seed, words=300):
    """About one token a word; nothing in common with another seed's."""
    draw = random.Random(seed)
    return f"Story {seed}: " + " ".join(draw.choice(WORDS) for _ in range(words))


PROMPTS = [prompt(seed) for seed in range(5)]  # together more than the device holds


def ask(server, text):
    """(answer, prompt tokens, cached tokens) of a greedy answer."""
    status, body = server.request("/generate", {
        "text": text, "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER_TOKENS}})
    assert status == 200, body
    return body["text"], body["meta_info"]["prompt_tokens"], body["meta_info"]["cached_tokens"]


def hit_tokens(server, tier):
    return server.metric("cached_tokens_total", f'tier="{tier}"')


def inspect_kv(*arguments):
    result = subprocess.run([BINARY, "inspect", "kv", "--json", *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


class RedisServer:
    """A Redis server of this test's own, on a socket of its folder: Debian's redis-tools have it by another name."""

    def __init__(self, folder):
        self.socket = os.path.join(folder, "redis.sock")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir", folder],
            executable=shutil.which("redis-check-rdb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1000):
            if os.path.exists(self.socket):
                return
            time.sleep(0.01)
        raise RuntimeError("Redis did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


class HiCacheCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plain = Server(*COMMON)
        answers = [ask(plain, text) for text in PROMPTS]
        cls.expected = [text for text, _, _ in answers]
        cls.full_pages = sum(tokens // PAGE for _, tokens, _ in answers)
        cls.prompt_tokens = [tokens for _, tokens, _ in answers]
        assert sum(cls.prompt_tokens) > DEVICE_TOKENS
        plain.stop()

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.servers = []
        self.addCleanup(lambda: [server.kill() for server in self.servers])

    def start(self, *arguments):
        server = Server(*HICACHE, *arguments)
        self.servers.append(server)
        return server

    def stop(self, server):
        begin = time.monotonic()
        self.assertEqual(server.stop(), 0, server.read_log())
        self.assertLess(time.monotonic() - begin, 10)

    def ask_all(self, server):
        """Every answer is right; the cached tokens of each."""
        cached = []
        for text, expected, tokens in zip(PROMPTS, self.expected, self.prompt_tokens):
            answer, _, found = ask(server, text)
            self.assertEqual(answer, expected)
            self.assertLessEqual(found, tokens - 1)
            cached.append(found)
        return cached

    def wait_for(self, condition, seconds=20):
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            time.sleep(0.02)
        self.fail("it did not come about in time")

    def wait_until_stored(self, server):
        self.wait_for(lambda: server.metric("cache_tier_pages", 'tier="storage"') >= self.full_pages)


class HostTier(HiCacheCase):
    def test_what_left_the_device_comes_back_from_the_host(self):
        for arguments in ([], ["--hicache-io-backend", "direct"], ["--hicache-mem-layout", "page_first"],
                          ["--hicache-write-policy", "write_back"], ["--radix-eviction-policy", "slru"]):
            with self.subTest(arguments):
                server = self.start(*arguments)
                self.assertEqual(sum(self.ask_all(server)), 0)
                self.assertEqual(hit_tokens(server, "host"), 0)
                cached = self.ask_all(server)
                self.assertGreater(hit_tokens(server, "host"), 0)
                self.assertEqual(sum(cached), hit_tokens(server, "host") + hit_tokens(server, "device"))
                self.assertGreater(server.metric("hicache_load_decisions_total", 'decision="load"'), 0)
                told = inspect_kv("--base-url", server.url)
                self.assertEqual([tier["name"] for tier in told["cache_tiers"]], ["device", "host"])
                self.assertGreater(told["cache_tiers"][1]["read_bytes"], 0)
                self.stop(server)

    def test_flush_forgets_device_and_host(self):
        server = self.start()
        self.ask_all(server)
        self.assertEqual(server.request("/flush_cache", {})[0], 200)
        self.assertEqual(sum(self.ask_all(server)), 0)
        self.assertEqual(server.request("/clear_hicache_storage_backend", {})[0], 400)  # there is none
        self.stop(server)

    def test_selective_keeps_what_was_used_again(self):
        server = self.start("--hicache-write-policy", "write_through_selective")
        self.ask_all(server)
        self.assertEqual(server.metric("cache_tier_written_bytes_total", 'tier="host"'), 0)
        ask(server, PROMPTS[-1])  # still on the device: its second use
        self.wait_for(lambda: server.metric("cache_tier_written_bytes_total", 'tier="host"') > 0)
        self.stop(server)

    def test_without_tolerance_decode_moves_and_copies_are_held(self):
        for arguments, moved in ((["--assume", "cpu:tolerates-host-copies=off"], True),
                                 (["--assume", "cpu:tolerates-host-copies=off", "--attention-backend", "cpu"], False)):
            with self.subTest(arguments):
                server = self.start(*arguments)
                resolution = server.request("/get_server_info")[1]["resolution"]
                self.assertEqual(resolution["decode"]["candidates"][0], "reference" if moved else "cpu")
                self.assertEqual(resolution["hicache"]["io_backend"], "kernel" if moved else "direct")
                for _ in range(2):
                    for text in PROMPTS:
                        ask(server, text)
                self.assertGreater(hit_tokens(server, "host"), 0)
                self.assertEqual(server.metric("hicache_held_steps_total") > 0, moved)
                self.stop(server)
        refused = subprocess.run(
            [BINARY, "serve", "--port", "0", "--model", MODEL, *HICACHE, "--assume", "cpu:tolerates-host-copies=off",
             "--attention-backend", "cpu", "--hicache-io-backend", "kernel"], capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("cpu decodes and does not tolerate SM-side host copies", refused.stderr)


class StorageTier(HiCacheCase):
    """Over a folder; RedisTier runs the same over Redis."""

    def storage(self):
        return ("--hicache-storage-backend", "file", "--hicache-storage-dir", self.folder)

    def test_a_restart_finds_everything(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.stop(server)  # writes what is not written yet
        server = self.start(*self.storage())
        cached = self.ask_all(server)
        self.assertGreater(hit_tokens(server, "storage"), 0)
        for found, tokens in zip(cached, self.prompt_tokens):
            self.assertEqual(found, (tokens - 1) // PAGE * PAGE)  # the last token is always computed
        self.assertEqual(server.metric("cache_tier_corrupt_pages_total", 'tier="storage"'), 0)
        self.assertEqual(server.metric("hicache_prefetches_in_flight"), 0)
        self.stop(server)

    def test_another_kv_type_finds_nothing(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.stop(server)
        other = self.start(*self.storage(), "--kv-cache-dtype", "float16")
        for text in PROMPTS:
            self.assertEqual(ask(other, text)[2], 0)
        self.assertEqual(hit_tokens(other, "storage"), 0)
        self.stop(other)
        again = self.start(*self.storage())
        self.assertGreater(sum(self.ask_all(again)), 0)  # each has its own
        self.stop(again)

    def test_kill_and_restart(self):
        # In the middle of the writes of different prompts; twice, on what the first one left.
        for asked in (1, 3, len(PROMPTS)):
            server = self.start(*self.storage())
            for text in PROMPTS[:asked]:
                ask(server, text)
            server.kill()
            server = self.start(*self.storage())
            self.ask_all(server)
            self.assertEqual(server.metric("cache_tier_corrupt_pages_total", 'tier="storage"'), 0)
            server.kill()

    def test_acknowledged_pages_survive_a_kill(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.wait_until_stored(server)
        server.kill()
        server = self.start(*self.storage())
        for found, tokens in zip(self.ask_all(server), self.prompt_tokens):
            self.assertEqual(found, (tokens - 1) // PAGE * PAGE)
        self.stop(server)

    def test_two_servers_share(self):
        one, two = self.start(*self.storage()), self.start(*self.storage())
        self.ask_all(one)
        self.wait_until_stored(one)
        cached = self.ask_all(two)
        self.assertEqual(sum(cached), sum((tokens - 1) // PAGE * PAGE for tokens in self.prompt_tokens))
        self.assertGreater(hit_tokens(two, "storage"), 0)
        self.stop(one)
        self.stop(two)

    def test_clearing_storage(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.wait_until_stored(server)
        self.assertEqual(server.request("/flush_cache", {})[0], 200)
        self.assertGreater(ask(server, PROMPTS[0])[2], 0)  # storage has it still
        self.assertEqual(server.request("/clear_hicache_storage_backend", method="GET")[0], 200)
        self.assertEqual(server.metric("cache_tier_pages", 'tier="storage"'), 0)
        self.assertEqual(server.request("/flush_cache", {})[0], 200)
        self.assertEqual(ask(server, PROMPTS[1])[2], 0)
        self.stop(server)

    def test_a_restart_answers_sooner_than_computing(self):
        """The shared prefix of 1,000 tokens: time to its first token, at least 5 times sooner."""
        shared = prompt(99, words=1040)
        server = self.start(*self.storage())
        ask(server, shared)
        self.stop(server)

        def first_token(storage):
            """Of a server that has just started; the least of three, each with a prefix of its own pages only."""
            times = []
            for _ in range(3):
                server = self.start(*storage)
                ask(server, "Hello")  # buffers are touched, threads are up
                times.append(time_to_first_token(server, shared + " And then"))
                self.last_hit = hit_tokens(server, "storage")
                self.stop(server)
            return min(times)
        computed = first_token(())
        loaded = first_token(self.storage())
        self.assertGreaterEqual(self.last_hit, 1000)
        print(f"\ntime to first token: computed {computed * 1000:.0f} ms, from storage {loaded * 1000:.0f} ms, "
              f"{computed / loaded:.1f} times sooner", flush=True)
        self.assertGreaterEqual(computed / loaded, 5)


class FileTier(StorageTier):
    def test_the_folder_is_told(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.stop(server)
        told = inspect_kv("--hicache-storage-dir", self.folder, "--verify")
        self.assertEqual(len(told["fingerprints"]), 1)
        self.assertGreaterEqual(told["pages"], self.full_pages)
        self.assertEqual((told["damaged"], told["unfinished"], told["verified"]), ([], 0, True))

    def test_a_damaged_page_is_a_miss_that_is_counted(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.stop(server)
        pages = [os.path.join(path, name) for path, _, names in os.walk(self.folder)
                 for name in names if name.endswith(".page")]
        for path in pages:
            with open(path, "r+b") as page:
                page.seek(-100, os.SEEK_END)
                byte = page.read(1)
                page.seek(-100, os.SEEK_END)
                page.write(bytes([byte[0] ^ 1]))
        self.assertEqual(len(inspect_kv("--hicache-storage-dir", self.folder, "--verify")["damaged"]), len(pages))
        server = self.start(*self.storage())
        self.assertEqual(sum(self.ask_all(server)), 0)
        self.assertGreater(server.metric("cache_tier_corrupt_pages_total", 'tier="storage"'), 0)
        self.stop(server)


@unittest.skipUnless(shutil.which("redis-check-rdb"), "no Redis server")
class RedisTier(StorageTier):
    def setUp(self):
        super().setUp()
        self.redis = RedisServer(self.folder)
        self.addCleanup(self.redis.stop)

    def storage(self):
        return ("--hicache-storage-backend", "redis", "--hicache-storage-url", f"unix://{self.redis.socket}")

    def test_a_server_that_is_gone_costs_hits_not_answers(self):
        server = self.start(*self.storage())
        self.ask_all(server)
        self.redis.stop()
        self.assertEqual(server.request("/flush_cache", {})[0], 200)
        self.assertEqual(sum(self.ask_all(server)), 0)
        status, answer = server.request("/clear_hicache_storage_backend", {})[:2]
        self.assertEqual(status, 503)
        self.assertIn("not everything in storage is cleared", str(answer))
        server.kill()


def time_to_first_token(server, text):
    """Seconds from sending the request to its first token."""
    body = json.dumps({"text": text, "stream": True,
                       "sampling_params": {"temperature": 0, "max_new_tokens": 2}}).encode()
    begin = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(server.url + "/generate", body), timeout=120) as reply:
        reply.readline()
        return time.monotonic() - begin


del StorageTier  # it runs as FileTier and RedisTier

if __name__ == "__main__":
    unittest.main(verbosity=2)
