"""`attune bench serving` against `attune serve`, and the arithmetic of bench/compare_llama.py."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/e2e"), str(ROOT / "bench")]
import attune_server  # noqa: E402
import compare_llama  # noqa: E402


def bench(*arguments):
    """(exit code, standard output, standard error) of `attune bench serving`."""
    done = subprocess.run([attune_server.BINARY, "bench", "serving", "--tokenizer", attune_server.MODEL, *arguments],
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


class BenchServing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = attune_server.Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def measured(self, *arguments):
        code, out, err = bench("--base-url", self.server.url, "--json", *arguments)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_every_backend_counts_what_was_asked_for(self):
        for backend in ("attune", "sglang", "openai", "openai-chat"):
            with self.subTest(backend):
                row = self.measured("--backend", backend, "--num-prompts", "3", "--random-input-len", "12",
                                    "--random-output-len", "5", "--random-range-ratio", "1")
                self.assertEqual((row["completed"], row["failed"], row["total_output_tokens"]), (3, 0, 15))
                if backend != "openai-chat":  # the template adds to the prompt
                    self.assertEqual(row["total_input_tokens"], 36)
                self.assertGreater(row["mean_ttft_ms"], 0)
                self.assertLessEqual(row["mean_ttft_ms"], row["mean_e2e_latency_ms"])
                self.assertGreater(row["mean_tpot_ms"], 0)

    def test_bug_k07_the_hit_share_is_that_of_the_prefixes(self):
        shared = ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "1", "--gsp-prompts-per-group", "4",
                  "--gsp-system-prompt-len", "64", "--gsp-question-len", "16", "--gsp-output-len", "2",
                  "--max-concurrency", "1", "--flush-cache"]
        row = self.measured(*shared)
        self.assertEqual(row["total_cached_tokens"], 3 * 64)
        self.assertEqual(row["cache_hit_rate"], 3 * 64 / (4 * 80))

    def test_details_go_to_the_file_one_line_a_run(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "out.jsonl")
            for _ in range(2):
                self.measured("--num-prompts", "2", "--random-input-len", "4", "--random-output-len", "3",
                              "--random-range-ratio", "1", "--output-file", str(path), "--output-details")
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(len(rows), 2)
        self.assertEqual([len(gaps) for gaps in rows[0]["itls"]], [2, 2])  # tokens - 1
        self.assertEqual(rows[0]["errors"], ["", ""])

    def test_refused_requests_are_told(self):
        code, out, _ = bench("--base-url", self.server.url, "--json", "--num-prompts", "1", "--warmup-requests", "0",
                             "--random-input-len", "9000", "--random-range-ratio", "1")
        self.assertEqual(code, 1)
        self.assertIn("HTTP status 400", json.loads(out)["error"]["message"])

    def test_wrong_options_are_usage_errors(self):
        for arguments, said in ((["--request-rate", "fast"], "--request-rate"), (["--base-url", "https://x"], "TLS"),
                                (["--dataset-name", "lengths-file"], "--dataset-path")):
            code, out, err = bench(*arguments)
            self.assertEqual((code, out), (2, ""))
            self.assertIn(said, err)


class CompareLlama(unittest.TestCase):
    def test_ratios_say_how_much_better(self):
        values = {"llama.cpp": {"prompt 512": [100, 300, 200], "start": [0.2, 0.4, 0.3]},
                  "attune": {"prompt 512": [500, 600, 400], "start": [0.1, 0.2, 0.15]}}
        rows = compare_llama.summarise(values, "llama.cpp")
        self.assertEqual(rows[0]["ratio"]["attune"], 2.5)
        self.assertAlmostEqual(rows[1]["ratio"]["attune"], 2.0)  # half the time
        self.assertEqual((rows[0]["low"]["attune"], rows[0]["high"]["attune"]), (400, 600))
        text = compare_llama.table(rows, ["llama.cpp", "attune"], "llama.cpp")
        self.assertIn("| prompt 512 | tokens/s | 200 (100-300) | 500 (400-600) | **2.50** |", text)


if __name__ == "__main__":
    unittest.main()
