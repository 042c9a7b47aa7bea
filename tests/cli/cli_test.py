"""The commands as a person or a script runs them: exit codes, what goes where, the real model.

usage: cli_test.py ATTUNE [unittest arguments]
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf"
GOLDEN = json.loads((ROOT / "tests/golden/smollm2.json").read_text())
ATTUNE = ""


def run(*args, stdin="", env=None, cwd=ROOT):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATTUNE_")} | (env or {})
    return subprocess.run([ATTUNE, *map(str, args)], input=stdin, capture_output=True, text=True, env=environment,
                          cwd=cwd, timeout=300)


class Frame(unittest.TestCase):
    def test_help_goes_to_standard_output_and_mistakes_to_standard_error(self):
        listing = run("--help")
        self.assertEqual((listing.returncode, listing.stderr), (0, ""))
        for command in ("serve", "generate", "chat", "bench", "explain", "inspect"):
            self.assertIn(f"\n  {command} ", listing.stdout)
            help_text = run(*command.split(), "--help")
            self.assertEqual((help_text.returncode, help_text.stderr), (0, ""), command)
        for args in ([], ["inspekt"], ["version", "extra"], ["inspect", "--ful"], ["inspect", "a", "b"], ["bench", "nothing"]):
            result = run(*args)
            self.assertEqual((result.returncode, result.stdout), (2, ""), args)
        self.assertIn("did you mean inspect?", run("inspekt").stderr)
        self.assertIn("did you mean --full?", run("inspect", "--ful").stderr)

    def test_with_json_standard_output_is_json_whatever_happens(self):
        cases = [
            (["inspect", "--json", MODEL], 0),
            (["inspect", "--json", "no-such-file"], 2),
            (["inspect", "--json", "--page-size", "x"], 2),
            (["inspect", "--json", ROOT / "README.md"], 1),
            (["explain", "--json", MODEL, "--attention-backend", "no\"such"], 2),
            (["explain", "--json", "--model", "no-such-file"], 2),
            (["generate", "--json", "--model", MODEL], 2),
            (["serve", "--json", "--model", "no-such-file", "--port", "0"], 2),
            (["bench", "--json", "nothing"], 2),
        ]
        for args, code in cases:
            result = run(*args)
            self.assertEqual(result.returncode, code, (args, result.stderr))
            document = json.loads(result.stdout)
            self.assertIsInstance(document, dict)
            if code and args[0] != "explain":
                self.assertEqual(sorted(document["error"]), ["code", "message"], args)

    def test_what_is_wrong_with_the_model_file_is_code_1_and_with_the_setting_2(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "broken.gguf"
            broken.write_bytes(MODEL.read_bytes()[:100000])
            for command in (["inspect"], ["generate", "--prompt", "a", "--model"], ["serve", "--port", 0]):
                self.assertEqual(run(*command, broken).returncode, 1, command)
                self.assertEqual(run(*command, "no-such-file").returncode, 2, command)
        hub = run("generate", "--prompt", "a", "--model", "some-org/Some-Model-1.5B")
        self.assertIn("nothing is downloaded from a hub", hub.stderr)

    def test_flags_of_other_engines_are_told_ours(self):
        for args, told in ((["--max-model-len", "10"], "--context-length"), (["-c", "10"], "--context-length"),
                           (["--tp", "2"], "single device"), (["--seed", "1"], "did you mean --random-seed?")):
            result = run("serve", *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(told, result.stderr)

    def test_help_lists_what_matters_to_the_command(self):
        self.assertIn("--max-connections", run("serve", "--help").stdout)
        for command in (["generate"], ["chat"], ["bench", "latency"], ["bench", "serving"]):
            self.assertNotIn("--max-connections", run(*command, "--help").stdout, command)

    def test_a_conflict_names_the_flag_and_the_mend(self):
        result = run("explain", MODEL, "--attention-backend", "nope")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--attention-backend nope", result.stdout)
        conflicts = json.loads(run("explain", MODEL, "--json", "--attention-backend", "nope").stdout)["conflicts"]
        self.assertIn("reference", conflicts[0]["mend"])

    def test_flag_beats_environment_beats_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"dtype": "float32", "page_size": 32, "log_level": "error"}')
            config.flush()
            args = ["explain", MODEL, "--json", "--config", config.name]
            self.assertEqual(json.loads(run(*args).stdout)["page_size"], 32)
            self.assertEqual(json.loads(run(*args, env={"ATTUNE_PAGE_SIZE": "64"}).stdout)["page_size"], 64)
            self.assertEqual(json.loads(run(*args, "--page-size", "16", env={"ATTUNE_PAGE_SIZE": "64"}).stdout)["page_size"], 16)

    def test_configuration_files_are_refused_with_the_place(self):
        for text, told in [('{"page_sise": 1}', "did you mean page_size?"), ('{"page_size": 1', "byte 15"),
                           ('{"page_size": {}}', "page_size is object"), ("[1]", "no JSON object"),
                           ('{"port": 99999}', "from 0 to 65535")]:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
                config.write(text)
                config.flush()
                result = run("inspect", MODEL, "--config", config.name)
                self.assertEqual(result.returncode, 2, text)
                self.assertIn(told, result.stderr)

    def test_an_environment_name_that_nobody_reads_is_told(self):
        result = run("inspect", MODEL, env={"ATTUNE_DTIPE": "float32"})
        self.assertEqual(result.returncode, 0)
        self.assertIn("did you mean ATTUNE_DTYPE?", result.stderr)

    def test_files_that_are_none_are_refused(self):
        for flag, command in [("--config", ["inspect", MODEL]), ("--chat-template", ["chat", "--model", MODEL]),
                              ("--prompt-file", ["generate", "--model", MODEL]),
                              ("--dataset-path", ["bench", "serving", "--dataset-name", "lengths-file"])]:
            for path, told in [(ROOT, "Is a directory"), ("/dev/zero", "is larger than")]:
                result = run(*command, flag, path)
                self.assertIn(result.returncode, (1, 2), (flag, path, result.stderr))
                self.assertIn(told, result.stderr)

    def test_a_trace_that_cannot_be_leaves_the_file_alone(self):
        with tempfile.NamedTemporaryFile("w+") as kept:
            kept.write("kept")
            kept.flush()
            result = run("bench", "latency", "--device", "cpu", "--trace", kept.name)
            self.assertEqual(result.returncode, 2)
            self.assertIn("--trace tells what a GPU does: it needs", result.stderr)
            self.assertEqual(open(kept.name).read(), "kept")

    def test_the_attention_benchmark_times_the_cases_that_are_asked_for(self):
        rows = [json.loads(line) for line in run("bench", "attention", "--device", "cpu", "--json", "--repeats", 1, "--alone",
                                                 "--cases", "9/3 64/64 1x1024,9/3 64/64 32x512", "--page-sizes", "64",
                                                 "--phases", "decode", "--backends", "cpu").stdout.splitlines()]
        self.assertEqual([(r["backend"], r["phase"], r["seqs"], r["page_size"], r["timing"]) for r in rows],
                         [("cpu", "decode", 1, 64, "alone"), ("cpu", "decode", 32, 64, "alone")])
        self.assertTrue(all(r["us"] > 0 and r["read_us"] > 0 for r in rows))
        for args, told in ((["--phases", "decod"], "did you mean decode?"), (["--cases", "2x3"], "--cases"),
                           (["--page-sizes", "0"], "--page-sizes"), (["--backends", "fa9"], "did you mean fa3?"),
                           (["--page-size", 1], "--page-sizes"), (["--attention-backend", "cpu"], "--backends"),
                           (["--phases", "verify"], "no case is left"),
                           (["--backends", "fa3"], "--backends fa3")):
            result = run("bench", "attention", "--device", "cpu", *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(told, result.stderr)
        rows = run("bench", "attention", "--device", "cpu", "--cases", "9/3 64/64 1x1024 page 64", "--pack-gqa", "off",
                   "--backends", "reference").stdout
        self.assertIn("takes no --pack-gqa", rows)
        for command in ("attention", "hicache"):
            self.assertIn("--device auto|cpu|cuda", run("bench", command, "--help").stdout)

    def test_copies_are_timed_beside_attention_on_a_gpu_alone(self):
        result = run("bench", "hicache", "--device", "cpu", "--pool-mib", 512, "--beside", "flashinfer")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--beside", result.stderr)

    def test_sizes_that_no_memory_holds_are_refused(self):
        for args in (["serving", "--num-prompts", 2**31 - 1], ["serving", "--random-input-len", 2**31 - 1],
                     ["latency", "--model", MODEL, "--input-len", 2**31 - 1],
                     ["latency", "--model", MODEL, "--output-len", 9000],
                     ["latency", "--model", MODEL, "--batch-sizes", 2**31 - 1]):
            result = run("bench", *args)
            self.assertEqual(result.returncode, 2, (args, result.stderr))

    def test_settings_that_serve_nothing_are_refused_with_the_mend(self):
        for args, told in ((["--context-length", 99999], "at most these"), (["--context-length", 1], "at least 2"),
                           (["--max-total-tokens", 1, "--page-size", 1], "raise it"),
                           (["--threads", 256], "lower it" if 4 * os.cpu_count() < 256 else ""),
                           (["--threads", 1024], "from 0 to 256")):
            result = run("generate", "--prompt", "a", "--max-new-tokens", 1, *args)
            self.assertEqual(result.returncode, 2 if told else 0, args)
            self.assertIn(told, result.stderr)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_lost_output_is_no_success(self):
        with open("/dev/full", "w") as full:
            for args in (["version"], ["--help"], ["inspect", MODEL], ["explain", "--json", MODEL]):
                result = subprocess.run([ATTUNE, *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, 1, args)
                self.assertIn("cannot write standard output", result.stderr)


class Inspect(unittest.TestCase):
    def test_tells_metadata_and_tensors_of_a_gguf(self):
        document = json.loads(run("inspect", "--json", MODEL).stdout)
        self.assertEqual(document["metadata"]["llama.block_count"], 30)
        self.assertEqual(document["metadata"]["tokenizer.ggml.tokens"]["count"], 49152)
        self.assertEqual(document["file_bytes"], MODEL.stat().st_size)
        self.assertEqual(len(document["tensors"]), 272)
        embedding = next(t for t in document["tensors"] if t["name"] == "token_embd.weight")
        self.assertEqual((embedding["shape"], embedding["dtype"]), ([49152, 576], "q8_0"))
        self.assertEqual(document["parameters"], 134515008)
        self.assertIn("token_embd.weight", run("inspect", MODEL).stdout)

    def test_full_shows_whole_arrays(self):
        document = json.loads(run("inspect", "--json", "--full", MODEL).stdout)
        self.assertEqual(len(document["metadata"]["tokenizer.ggml.merges"]["items"]), 48900)

    def test_a_truncated_file_is_refused_with_the_offset(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as broken:
            broken.write(MODEL.read_bytes()[:100000])
            broken.flush()
            result = run("inspect", broken.name)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"\d+")

    def test_kv_says_what_is_no_storage_and_no_server(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, told in ((folder, "no storage of pages: it has no root_salt"),
                               (folder + "/none", "there is no such folder")):
                result = run("inspect", "kv", "--json", "--hicache-storage-dir", path)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(json.loads(result.stdout)["error"]["message"], f"{path}: {told}")
            self.assertEqual(os.listdir(folder), [])  # looking makes nothing
        result = run("inspect", "kv", "--base-url", "http://127.0.0.1:1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("127.0.0.1:1", result.stderr)


class Generate(unittest.TestCase):
    def test_float32_gives_the_golden_ids_of_every_prompt(self):
        for golden in GOLDEN["prompts"]:
            result = run("generate", "--json", "--dtype", "float32", "--ignore-eos", "--max-new-tokens", 32, "--input-ids",
                         ",".join(map(str, golden["ids"])))
            self.assertEqual(result.returncode, 0, result.stderr)
            answer = json.loads(result.stdout)
            self.assertEqual(answer["output_ids"], golden["greedy"], golden["name"])
            self.assertEqual((answer["finish_reason"], answer["completion_tokens"]), ("length", 32))

    def test_text_and_ids_are_the_same_prompt(self):
        golden = GOLDEN["prompts"][0]
        by_text = json.loads(run("generate", "--json", "--max-new-tokens", 2, "--prompt", golden["text"]).stdout)
        self.assertEqual(by_text["prompt_ids"], golden["ids"])
        plain = run("generate", "--max-new-tokens", 2, "--prompt", golden["text"])
        self.assertEqual(plain.stdout, by_text["text"] + "\n")

    def test_the_prompt_may_come_from_standard_input_and_the_model_from_its_folder(self):
        golden = GOLDEN["prompts"][0]
        result = run("generate", "--json", "--max-new-tokens", 2, "--model", MODEL.parent, "--prompt-file", "-",
                     stdin=golden["text"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["prompt_ids"], golden["ids"])
        self.assertEqual(json.loads(run("inspect", "--json", MODEL.parent).stdout)["parameters"], 134515008)

    def test_logprobs_come_with_the_tokens(self):
        answer = json.loads(run("generate", "--json", "--max-new-tokens", 3, "--prompt", "Gravity is", "--top-logprobs", 2).stdout)
        self.assertEqual([pair[0] for pair in answer["output_logprobs"]], answer["output_ids"])
        self.assertEqual([len(row) for row in answer["output_top_logprobs"]], [2, 2, 2])

    def test_two_prompts_are_refused(self):
        result = run("generate", "--prompt", "a", "--input-ids", "1")
        self.assertEqual((result.returncode, result.stdout), (2, ""))


class Chat(unittest.TestCase):
    def test_one_answer_a_line_and_the_conversation_goes_on(self):
        words = "My name is Zoe. Remember it.\nWhat is my name?\n/reset\nWhat is my name?\n"
        result = run("chat", "--json", "--temperature", "0", "--max-new-tokens", 12, stdin=words)
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([a["role"] for a in answers], ["assistant"] * 3)
        self.assertIn("Zoe", answers[1]["content"])
        self.assertNotIn("Zoe", answers[2]["content"])


    def test_commands_are_told_and_unknown_ones_too(self):
        result = run("chat", MODEL, "--max-new-tokens", 2, stdin="/help\n/clear\n/nonsense\n/exit\nHello\n")
        self.assertEqual((result.returncode, result.stdout), (0, ""))
        self.assertIn("there is no /nonsense: /clear", result.stderr)
        self.assertIn("/clear (or /reset)", run("chat", "--help").stdout)

    def test_when_nothing_was_answered_it_has_failed(self):
        result = run("chat", "--max-total-tokens", 16, stdin="Hello\n")
        self.assertEqual((result.returncode, result.stdout), (1, ""))

    def test_ctrl_c_ends_the_answer_and_then_the_program(self):
        chat = subprocess.Popen([ATTUNE, "chat", "--max-new-tokens", "4000", "--ignore-eos"], bufsize=0, cwd=ROOT,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (chat.poll() is None and chat.kill(), chat.communicate()))
        for words in (b"Write a long story.\n", b"And another.\n"):
            chat.stdin.write(words)
            self.assertTrue(chat.stdout.read(1))
            chat.send_signal(signal.SIGINT)
            chat.stdin.write(b"/help\n")
            self.assertIn(b"/clear", chat.stderr.readline())  # the answer is over
            self.assertTrue(os.read(chat.stdout.fileno(), 1 << 20).endswith(b"\n\n"))
        chat.send_signal(signal.SIGINT)
        self.assertEqual(chat.wait(timeout=30), 130)


class Serve(unittest.TestCase):
    def start(self, *args):
        server = subprocess.Popen([ATTUNE, "serve", "--port", "0", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, cwd=ROOT)
        self.addCleanup(lambda: (server.poll() is None and server.kill(), server.communicate()))
        return server

    def test_the_banners_curl_line_works_and_sigterm_ends_it(self):
        server = self.start()
        banner = ""
        while "messages" not in banner:
            line = server.stdout.readline()
            self.assertTrue(line, "the server ended early")
            banner += line
        for word in ("model", "device", "prefill:", "decode:", "KV cache", "tokens in pages of 16"):
            self.assertIn(word, banner)
        command = banner[banner.index("curl "):].strip().replace("\\\n", " ")
        body = json.loads(re.search(r"-d '(.*)'", command)[1])
        url = re.search(r"curl (\S+)", command)[1]
        request = urllib.request.Request(url, json.dumps(body | {"max_tokens": 4}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            self.assertTrue(json.load(response)["choices"][0]["message"]["content"])
        begin = time.monotonic()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=15), 0)
        self.assertLess(time.monotonic() - begin, 10)

    def test_the_banner_of_an_open_address_with_a_key(self):
        server = self.start(str(MODEL.parent), "--host", "0.0.0.0", "--api-key", "secret")
        banner = ""
        while "messages" not in banner:
            line = server.stdout.readline()
            self.assertTrue(line, "the server ended early")
            banner += line
        self.assertIn("curl http://127.0.0.1:", banner)
        self.assertIn('-H "Authorization: Bearer $KEY"', banner)
        self.assertIn("smollm2-135m-instruct-q4_1 (llama", banner)
        self.assertNotIn("secret", banner)
        server.send_signal(signal.SIGTERM)
        self.assertNotIn("there is no --api-key", server.communicate(timeout=20)[1])

    def test_closed_standard_streams_stay_out_of_the_way(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(f"exec '{ATTUNE}' serve --port {port} <&- >&- 2>&-", shell=True, cwd=ROOT)
        self.addCleanup(lambda: (server.poll() is None and server.kill(), server.wait()))
        url = f"http://127.0.0.1:{port}/health"
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=30)
                break
            except OSError:
                time.sleep(0.05)
        for fd in range(3):
            self.assertEqual(os.readlink(f"/proc/{server.pid}/fd/{fd}"), "/dev/null")

    def test_sigterm_ends_it_also_inside_a_step_that_does_not(self):
        server = self.start("--json", "--attention-backend", "reference", "--threads", "1", "--chunked-prefill-size", "-1")
        port = json.loads(server.stdout.readline())["port"]
        body = json.dumps({"prompt": [5] * 8000, "max_tokens": 1}).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(1)  # it runs
            begin = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)
            self.assertLess(time.monotonic() - begin, 10.5)

    def test_sigterm_while_loading_ends_it_at_once(self):
        server = self.start()
        self.assertIn("loading", server.stderr.readline())
        begin = time.monotonic()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=30), 0)
        self.assertLess(time.monotonic() - begin, 5)

    def test_a_reader_of_the_log_that_leaves_does_not_end_it(self):
        server = self.start("--json", "--log-requests")
        port = json.loads(server.stdout.readline())["port"]
        server.stderr.close()
        server.stderr = None
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, timeout=60) as response:
                self.assertEqual(response.status, 200)

    def test_json_announces_the_port_on_one_line(self):
        server = self.start("--json")
        ready = json.loads(server.stdout.readline())
        self.assertEqual(ready["event"], "ready")
        with urllib.request.urlopen(f"http://127.0.0.1:{ready['port']}/health", timeout=30) as response:
            self.assertEqual(response.status, 200)

    def test_an_address_in_use_is_told_before_the_model_loads(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run("serve", "--port", port)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(str(port), result.stderr)
        self.assertNotIn("loading", result.stderr)


if __name__ == "__main__":
    ATTUNE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
