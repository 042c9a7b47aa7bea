"""attune explain as a user runs it: presets, simulated devices, mistakes.

usage: explain_test.py ATTUNE [unittest arguments]
"""
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf"
PRESETS = ("smollm2", "llama3-8b", "qwen3-32b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3")
DEVICES = ("cpu", "sm80", "sm89", "sm90", "sm100")
PHASES = ("prefill", "decode", "verify", "draft_extend")
KEYS = {"hybrid", *PHASES, "page_size", "kv_cache_dtype", "kv_layout", "graphs", "num_splits", "pack_gqa", "pdl", "mla",
        "hicache", "refused", "reasons", "conflicts"}
ATTUNE = ""


def run(*args, env=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATTUNE_")} | (env or {})
    return subprocess.run([ATTUNE, *map(str, args)], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)


def explain(*args, env=None):
    """(exit code, resolution)"""
    result = run("explain", "--json", *args, env=env)
    return result.returncode, json.loads(result.stdout)


class Answers(unittest.TestCase):
    def test_a_preset_and_a_file_are_one_too_many(self):
        for arguments in [["some.gguf"], ["--model", "some.gguf"]]:
            code, r = explain("--model-preset", "smollm2", *arguments)
            self.assertEqual((code, r["conflicts"][0]["flags"]), (2, ["--model-preset", "--model"]))

    def test_every_preset_on_every_device(self):
        for preset, device in itertools.product(PRESETS, DEVICES):
            code, r = explain("--model-preset", preset, "--device", device)
            self.assertEqual(code, 0, (preset, device))
            self.assertLessEqual(KEYS, set(r))
            self.assertEqual(r["conflicts"], [])
            for phase in PHASES:
                self.assertTrue(r[phase]["candidates"], (preset, device, phase))
                self.assertEqual(r[phase]["candidates"][-1], "reference")
            self.assertEqual(r["page_size"], 16 if device == "cpu" else 64)
            self.assertEqual(r["mla"] is not None, preset.startswith("deepseek"))
            self.assertIsNone(r["hicache"])
            for reason in r["reasons"]:
                self.assertTrue(reason["rule"] and reason["text"])
            for refusal in r["refused"]:
                self.assertIn(refusal["phase"], PHASES)
                self.assertTrue(refusal["backend"] and refusal["why"])

    def test_the_hierarchical_cache_is_resolved(self):
        for preset, piece, io in [("llama3-8b", 262144, "direct"), ("deepseek-v3", 73728, "kernel")]:
            code, r = explain("--model-preset", preset, "--device", "sm90", "--enable-hierarchical-cache")
            self.assertEqual(code, 0)
            self.assertEqual((r["hicache"]["piece_bytes"], r["hicache"]["io_backend"]), (piece, io))
            self.assertEqual((r["hicache"]["mem_layout"], r["hicache"]["ratio"]), ("layer_first", 2))

    def test_the_table_tells_the_same(self):
        result = run("explain", "--model-preset", "deepseek-v3", "--device", "sm90")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for told in ("flashinfer_mla (S6: preferred), then reference (fallback)", "flashmla for every phase: has no kernel yet", "page size     64", "absorbed below 160", "fa3 for every phase"):
            self.assertIn(told, result.stdout)

    def test_a_model_file_on_the_real_and_on_a_simulated_device(self):
        for device, head in [("auto", "cpu"), ("cpu", "cpu"), ("sm90", "fa3")]:
            code, r = explain(MODEL, "--device", device)
            self.assertEqual((code, r["decode"]["candidates"][0]), (0, head))
        real = run("explain", MODEL).stdout
        self.assertIn("needs sm90, this device is a CPU; has no kernel yet", real)

    def test_builds_and_assumptions(self):
        code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--without", "fa3,flashinfer")
        self.assertEqual((code, r["decode"]["candidates"]), (0, ["cudnn", "reference"]))
        code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--enable-hierarchical-cache", "--page-size", "16",
                          "--assume", "fa3:tolerates-host-copies=off", "--assume", "cudnn:tolerates-host-copies=off")
        self.assertEqual((code, r["hybrid"]), (0, True))
        self.assertEqual(r["decode"]["candidates"][0], "flashinfer")
        self.assertEqual(r["hicache"]["held_beside"], ["fa3", "cudnn"])
        rules = {reason["rule"] for reason in r["reasons"]}
        self.assertLessEqual({"H1", "H2", "H5", "H7", "H8"}, rules)

    def test_one_answer_however_it_is_written(self):
        base = ["--model-preset", "llama3-8b"]
        wanted = explain(*base, "--device", "sm90", "--page-size", "32", "--decode-attention-backend", "cudnn")
        self.assertEqual(wanted, explain(*base, "--decode_attention_backend=cudnn", "--page_size=32", "--device=sm90"))
        self.assertEqual(wanted, explain(*base, "--page-size", "32", env={
            "ATTUNE_DEVICE": "sm90", "ATTUNE_DECODE_ATTENTION_BACKEND": "cudnn", "ATTUNE_PAGE_SIZE": "64"}))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"page_size": 32, "device": "sm90", "decode-attention-backend": "cudnn"}')
            config.flush()
            self.assertEqual(wanted, explain(*base, "--config", config.name))


class Mistakes(unittest.TestCase):
    CASES = [  # arguments, flags, in the text, in the mend
        (["--device", "sm80", "--attention-backend", "fa3"], ["--attention-backend"], "fa3 needs sm90, this device is sm80", "flashinfer"),
        (["--device", "sm90", "--attention-backend", "fa3", "--kv-cache-dtype", "fp8_e5m2"],
         ["--attention-backend", "--kv-cache-dtype"], "fa3 has only fp8_e4m3 KV, not fp8_e5m2", "use --kv-cache-dtype fp8_e4m3"),
        (["--device", "sm90", "--page-size", "48"], ["--page-size"], "power of two", "32 or 64"),
        (["--device", "cpu", "--page-size", "48"], ["--page-size"], "power of two", "32 or 64"),
        (["--device", "sm90", "--attention-backend", "trtllm_mla"], ["--attention-backend"], "serves MLA alone, this model has MHA", "fa3"),
        (["--device", "sm90", "--attention-backend", "cudnn", "--speculative-eagle-topk", "4"],
         ["--attention-backend", "--speculative-eagle-topk"], "cudnn has no tree mask", "fa3, flashinfer, reference"),
        (["--device", "sm90", "--attention-backend", "flashinfr"], ["--attention-backend"], "did you mean flashinfer?", "fa3"),
        (["--device", "sm90", "--attention-bakend", "fa3"], ["--attention-bakend"], "did you mean --attention-backend?", "--help"),
        (["--device", "sm-90"], ["--device"], "did you mean sm90?", "sm80, sm89, sm90"),
        (["--device", "sm90", "--kv-cache-dtype", "fp8"], ["--kv-cache-dtype"], "did you mean fp8_e4m3?", "fp8_e5m2"),
        (["--device", "sm90", "--page-size", "many"], ["--page-size"], "'many'", "a whole number"),
        (["--device", "sm90", "--without", "cudn"], ["--without"], "did you mean cudnn?", "flashmla"),
        (["--device", "sm90", "--assume", "fa3:tolerates-host-copy=off"], ["--assume"], "did you mean tolerates-host-copies?", "graph-safe"),
        (["--device", "sm90", "--enable-hierarchical-cache", "--disable-radix-cache"],
         ["--enable-hierarchical-cache", "--disable-radix-cache"], "nothing to keep", "drop one"),
        (["--device", "cuda"], ["--device"], "use --device cpu", "sm90"),
    ]

    def test_each_is_one_sentence_with_a_mend_and_exit_code_2(self):
        for args, flags, text, mend in self.CASES:
            with self.subTest(args=args):
                code, r = explain("--model-preset", "llama3-8b", *args)
                self.assertEqual(code, 2)
                self.assertLessEqual(KEYS, set(r))
                self.assertEqual(len(r["conflicts"]), 1)
                conflict = r["conflicts"][0]
                self.assertEqual(conflict["flags"], flags)
                self.assertIn(text, conflict["text"])
                self.assertIn(mend, conflict["mend"])
                plain = run("explain", "--model-preset", "llama3-8b", *args)
                self.assertEqual(plain.returncode, 2)
                self.assertIn(conflict["text"], plain.stdout)

    @unittest.skipIf((os.cpu_count() or 1) >= 64, "so many threads are as many as this machine wants")
    def test_what_hinders_the_device_is_told_under_its_own_flag(self):
        code, r = explain("--model-preset", "llama3-8b", "--device", "cpu", "--threads", "256")
        self.assertEqual((code, [c["flags"] for c in r["conflicts"]]), (2, [["--threads"]]))
        self.assertIn("change --threads", r["conflicts"][0]["mend"])

    def test_what_can_be_resolved_beside_a_mistake_is(self):
        code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--pagesize", "16", "--bogus", "--num-splits=x")
        self.assertEqual((code, len(r["conflicts"])), (2, 3))
        self.assertEqual(r["decode"]["candidates"], ["fa3", "flashinfer", "cudnn", "reference"])

    def test_a_device_that_is_none_is_not_taken_for_this_machine(self):
        _, r = explain("--model-preset", "llama3-8b", "--device", "sm-90")
        self.assertEqual(r["decode"]["candidates"], [])

    def test_a_model_that_is_not_there(self):
        for args, flag in [(["--model", "no-such-file"], "--model"), (["no-such-file"], "--model"),
                           (["--model-preset", "lama3-8b"], "--model-preset")]:
            code, r = explain(*args, "--device", "sm90")
            self.assertEqual((code, r["conflicts"][0]["flags"], r["decode"]["candidates"]), (2, [flag], []))
        self.assertIn("did you mean llama3-8b?", r["conflicts"][0]["text"])

    def test_environment_and_file_too(self):
        code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", env={"ATTUNE_PAGE_SIZE": "many"})
        self.assertEqual((code, r["conflicts"][0]["flags"]), (2, ["ATTUNE_PAGE_SIZE"]))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"page_sise": 32}')
            config.flush()
            code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--config", config.name)
        self.assertEqual((code, r["conflicts"][0]["flags"]), (2, ["page_sise"]))
        self.assertIn("did you mean page_size?", r["conflicts"][0]["text"])

    def test_one_wrong_value_of_a_file_does_not_hide_the_others(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"page_size": null, "attention_backend": "fa4", "num_splits": 3}')
            config.flush()
            code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--config", config.name)
        self.assertEqual((code, [c["flags"] for c in r["conflicts"]]), (2, [["--config"], ["--attention-backend"]]))
        self.assertIn("page_size is null", r["conflicts"][0]["text"])
        self.assertEqual(r["num_splits"], 3)

    def test_a_file_that_is_not_there_and_one_word_too_many(self):
        code, r = explain("--model-preset", "llama3-8b", "--device", "sm90", "--config", "no-such-file")
        self.assertEqual((code, r["conflicts"][0]["flags"]), (2, ["--config"]))
        code, r = explain(MODEL, "another", "--device", "sm90")
        self.assertEqual((code, r["conflicts"][0]["flags"]), (2, ["MODEL"]))

    def on_this_cpu(self):
        if explain(MODEL)[1]["decode"]["candidates"][0] != "cpu":  # --device cpu is a simulated one
            self.skipTest("this machine has a GPU")
        return ["--enable-hierarchical-cache", "--max-total-tokens", "4096"]

    def test_the_machine_itself_is_checked(self):
        hicache = self.on_this_cpu()
        code, r = explain(MODEL, *hicache)
        self.assertEqual((code, r["hicache"]["ratio"]), (0, 2))
        code, r = explain(MODEL, *hicache, "--hicache-size", "100000")
        self.assertEqual((code, r["conflicts"][0]["rule"]), (2, "H8"))
        self.assertIn("can be pinned beside the device pool", r["conflicts"][0]["text"])
        with tempfile.TemporaryDirectory() as folder:  # the disk is that of the nearest folder there is
            storage = ["--hicache-storage-backend", "file", "--hicache-storage-dir", folder + "/not/yet"]
            code, r = explain(MODEL, *hicache, *storage)
            disk = shutil.disk_usage(folder)
            self.assertLessEqual(abs(r["hicache"]["storage_bytes"] - min(disk.total // 10, disk.free // 2)), 1 << 30)
            code, r = explain(MODEL, *hicache, *storage, "--hicache-storage-size", "900000")
            self.assertEqual((code, r["conflicts"][0]["rule"]), (2, "storage"))

    def test_a_tolerance_given_up_on_this_machine(self):
        hicache = self.on_this_cpu()
        code, r = explain(MODEL, *hicache, "--assume", "cpu:tolerates-host-copies=off")
        self.assertEqual((code, r["hicache"]["io_backend"], r["hicache"]["held_beside"]), (0, "kernel", ["cpu"]))
        self.assertEqual(r["decode"]["candidates"][0], "reference")
        code, r = explain(MODEL, *hicache, "--assume", "cpu:tolerates-host-copies=on")
        self.assertEqual((code, r["conflicts"][0]["rule"]), (2, "assume"))

    def test_serve_refuses_what_it_cannot_do_yet_and_every_conflict(self):
        for args, told in [(["--speculative-eagle-topk", "4"], "--speculative-eagle-topk: this build cannot do it yet"),
                           (["--attention-backend", "fa3"], "fa3 needs sm90, this device is a CPU"),
                           (["--page-size", "48"], "power of two"),
                           (["--device", "sm90"], "--device: 'sm90' is not one of auto, cpu, cuda")]:
            result = run("serve", "--port", "0", "--model", MODEL, *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(told, result.stderr)


if __name__ == "__main__":
    ATTUNE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
