"""curl, as people try a server by hand: native form, other routes, odd requests."""
import json
import re
import subprocess

from attune_server import ServerCase


class CurlTest(ServerCase):
    arguments = ("--max-request-bytes", "3000000")

    def curl(self, path, *arguments, body=None):
        command = ["curl", "--silent", "--show-error", "--max-time", "60", self.server.url + path]
        command += arguments
        if body is not None:
            command += ["--data-binary", "@-"]
        result = subprocess.run(command, input=body, capture_output=True, text=True, check=True)
        return result.stdout

    def status(self, path, *arguments, body=None):
        return int(self.curl(path, "--output", "/dev/null", "--write-out", "%{http_code}", *arguments,
                             body=body))

    def generate(self, **body):
        return json.loads(self.curl("/generate", body=json.dumps(body)))

    def test_generate(self):
        answer = self.generate(text="The capital of France is",
                               sampling_params={"temperature": 0, "max_new_tokens": 8})
        self.assertIn("Paris", answer["text"])
        meta = answer["meta_info"]
        self.assertEqual(len(answer["output_ids"]), 8)
        self.assertEqual(meta["completion_tokens"], 8)
        self.assertEqual(meta["finish_reason"], {"type": "length", "length": 8})
        ids = json.loads(self.curl("/v1/tokenize", body=json.dumps(
            {"model": "m", "prompt": "The capital of France is"})))["tokens"]
        self.assertEqual(meta["prompt_tokens"], len(ids))
        again = self.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": 8})
        self.assertEqual(again["output_ids"], answer["output_ids"])
        text = json.loads(self.curl("/v1/detokenize", body=json.dumps({"tokens": answer["output_ids"]})))
        self.assertEqual(text["text"], answer["text"])

    def test_generate_stream(self):
        output = self.curl("/generate", "--no-buffer", body=json.dumps(
            {"text": "One, two, three,", "stream": True,
             "sampling_params": {"temperature": 0, "max_new_tokens": 6}}))
        events = [line[len("data: "):] for line in output.split("\n\n") if line]
        self.assertEqual(events.pop(), "[DONE]")
        texts = [json.loads(event)["text"] for event in events]
        for before, after in zip(texts, texts[1:]):
            self.assertTrue(after.startswith(before))

    def test_logprobs(self):
        meta = self.generate(text="The capital of France is", return_logprob=True, logprob_start_len=0,
                             top_logprobs_num=2,
                             sampling_params={"temperature": 0, "max_new_tokens": 2})["meta_info"]
        self.assertEqual(len(meta["input_token_logprobs"]), meta["prompt_tokens"])
        self.assertIsNone(meta["input_token_logprobs"][0][0])
        self.assertTrue(all(entry[0] <= 0 for entry in meta["input_token_logprobs"][1:]))
        self.assertEqual(len(meta["output_top_logprobs"][0]), 2)

    def test_large_body_with_expect_header(self):
        body = json.dumps({"prompt": "word " * 500000})  # curl asks before it sends this much
        answer = json.loads(self.curl("/v1/completions", body=body))
        self.assertIn("8192", answer["error"]["message"])

    def test_limits_and_wrong_requests(self):
        self.assertEqual(self.status("/v1/completions", body="x" * 3000001), 413)
        self.assertEqual(self.status("/v1/completions", body="{"), 400)
        self.assertEqual(self.status("/nothing"), 404)
        self.assertEqual(self.status("/generate"), 405)
        self.assertEqual(self.status("/health", "--header", "X: " + "y" * 20000), 431)
        self.assertEqual(self.status("/v1/completions", "--http1.0", body='{"prompt":"hi","max_tokens":1}'), 200)

    def test_a_wrong_prompt_is_told_by_its_field(self):
        for field, value in (("text", ""), ("input_ids", [99999999]), ("input_ids", [5] * 8192)):
            error = self.generate(**{field: value})["error"]
            self.assertEqual((error["param"], error["code"]), (field, "invalid_value"), error)
        self.assertIn("8192 tokens, which leaves no room for output", error["message"])
        error = self.generate(input_ids=[[5], [5] * 8192])["error"]
        self.assertIn("prompt 1 has 8192 tokens", error["message"])

    def test_states(self):
        self.assertEqual(self.status("/health"), 200)
        self.assertEqual(self.status("/health_generate"), 200)
        self.assertEqual(self.status("/health", "--head"), 200)
        info = json.loads(self.curl("/get_model_info"))
        self.assertEqual(info["is_generation"], True)
        # The file names <|im_end|> (2) only; <|endoftext|> (0) ends an answer as well.
        self.assertEqual(info["eos_token_ids"], [2, 0])
        info = json.loads(self.curl("/get_server_info"))
        self.assertEqual(info["status"], "ready")
        self.assertEqual(info["settings"]["port"]["value"], 0)
        self.assertEqual(self.status("/flush_cache", "--request", "POST"), 200)
        self.assertEqual(json.loads(self.curl("/get_server_info"))["stats"]["cached_pages"], 0)

    def test_metrics_are_prometheus_text(self):
        self.generate(text="Hello", sampling_params={"max_new_tokens": 4, "ignore_eos": True})
        text = self.curl("/metrics")
        sample = re.compile(r'attune:[a-z0-9_]+\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\} -?[0-9.e+-]+$')
        for line in text.splitlines():
            self.assertTrue(line.startswith("# ") or sample.match(line), line)
        self.assertGreaterEqual(self.server.metric("generation_tokens_total"), 4)
