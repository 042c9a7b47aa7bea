"""The `openai` package against the server: what it sends is what most applications send."""
import threading
import time

import openai

from attune_server import ServerCase

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class OpenAiClientTest(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0,
                                   timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def chat(self, **more):
        arguments = {"model": "any", "messages": QUESTION, "temperature": 0, "max_tokens": 16}
        return self.client.chat.completions.create(**{**arguments, **more})

    def complete(self, **more):
        arguments = {"model": "any", "prompt": "The capital of France is", "temperature": 0,
                     "max_tokens": 8}
        return self.client.completions.create(**{**arguments, **more})

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(self.client.models.retrieve(models[0].id).id, models[0].id)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("no-such-model")

    def test_chat(self):
        answer = self.chat()
        self.assertEqual(answer.model, "any")
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreater(usage.prompt_tokens, 10)

    def test_chat_stream_is_the_same_text(self):
        whole = self.chat().choices[0].message.content
        pieces, reasons = [], []
        for chunk in self.chat(stream=True):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            self.assertIsNone(chunk.usage)
            pieces.append(chunk.choices[0].delta.content or "")
            reasons.append(chunk.choices[0].finish_reason)
        self.assertEqual("".join(pieces), whole)
        self.assertEqual(set(reasons[:-1]), {None})
        self.assertIsNotNone(reasons[-1])

    def test_chat_stream_helper(self):
        with self.client.chat.completions.stream(model="any", messages=QUESTION, temperature=0,
                                                 max_tokens=16) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertIn("Paris", final.choices[0].message.content)

    def test_usage_in_a_stream(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, self.chat().usage.completion_tokens)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_answers_go_back_as_messages(self):
        first = self.chat().choices[0].message
        again = self.chat(messages=[*QUESTION, first.model_dump(),
                                    {"role": "user", "content": "And of Italy?"}])
        self.assertTrue(again.choices[0].message.content)

    def test_completions(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertIn("Paris", answer.choices[0].text)
        self.assertEqual("".join(chunk.choices[0].text for chunk in self.complete(stream=True)),
                         answer.choices[0].text)

    def test_prompts_of_every_shape(self):
        tokens = self.server.request("/v1/tokenize", {"prompt": "The capital of France is"})[1]["tokens"]
        text = self.complete().choices[0].text
        self.assertEqual(self.complete(prompt=tokens).choices[0].text, text)
        both = self.complete(prompt=["The capital of France is", "One, two, three,"])
        self.assertEqual([choice.index for choice in both.choices], [0, 1])
        self.assertEqual(both.choices[0].text, text)
        self.assertEqual(self.complete(prompt=[tokens, tokens]).choices[1].text, text)

    def test_choices(self):
        answer = self.chat(n=3, temperature=1.0, seed=5)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        texts = [choice.message.content for choice in answer.choices]
        self.assertGreater(len(set(texts)), 1)
        again = self.chat(n=3, temperature=1.0, seed=5)
        self.assertEqual(texts, [choice.message.content for choice in again.choices])
        streamed = ["", "", ""]
        for chunk in self.chat(n=3, temperature=1.0, seed=5, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(streamed, texts)

    def test_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        text = b"".join(bytes(token.bytes) for token in content[:4]).decode()
        self.assertTrue(self.chat().choices[0].message.content.startswith(text))
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.token, token.top_logprobs[0].token)  # greedy
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)

    def test_echo_scores_the_prompt(self):
        answer = self.complete(echo=True, logprobs=1, max_tokens=0)
        choice = answer.choices[0]
        self.assertEqual(choice.text, "The capital of France is")
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
            self.assertEqual(choice.text[offset:offset + len(token)], token)

    def test_stop(self):
        whole = self.chat(max_tokens=24).choices[0].message.content
        self.assertIn(" of ", whole)
        cut = self.chat(max_tokens=24, stop=[" of "]).choices[0]
        self.assertEqual(cut.message.content, whole.split(" of ")[0])
        self.assertEqual(cut.finish_reason, "stop")
        streamed = "".join(chunk.choices[0].delta.content or ""
                           for chunk in self.chat(max_tokens=24, stop=" of ", stream=True))
        self.assertEqual(streamed, cut.message.content)

    def test_logit_bias(self):
        banned = self.server.request("/v1/tokenize", {"prompt": " Paris"})[1]["tokens"]
        answer = self.complete(logit_bias={str(banned[0]): -100})
        self.assertNotIn(" Paris", answer.choices[0].text)

    def test_max_completion_tokens(self):
        answer = self.chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=3)
        self.assertEqual(answer.usage.completion_tokens, 3)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_sglang_extras(self):
        answer = self.chat(extra_body={"min_tokens": 5, "ignore_eos": True, "top_k": 1,
                                       "repetition_penalty": 1.1, "min_p": 0.05,
                                       "chat_template_kwargs": {"anything": True}})
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_errors(self):
        cases = [
            (dict(temperature=3), "temperature"),
            (dict(max_tokens=-5), "max_tokens"),
            (dict(messages=[]), "messages"),
            (dict(response_format={"type": "json_object"}), "response_format"),
            (dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), "tools"),
            (dict(extra_body={"foo": 1}), "foo"),
            (dict(messages=[{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:,"}}]}]), "messages[0].content[0]"),
        ]
        for arguments, param in cases:
            with self.subTest(param), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**arguments)
            self.assertEqual(caught.exception.param, param)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt=[1] * 100000)
        self.assertIn("100000", str(caught.exception))
        self.assertEqual((caught.exception.param, caught.exception.code), ("prompt", "invalid_value"))
        with self.assertRaises(openai.BadRequestError):
            self.complete(prompt="")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="any", input="x")

    def test_special_token_text_in_a_message_stays_text(self):
        plain = self.chat(messages=[{"role": "user", "content": "x"}]).usage.prompt_tokens
        marked = self.chat(messages=[{"role": "user", "content": "<|im_end|>"}]).usage.prompt_tokens
        self.assertGreater(marked, plain + 2)  # several pieces, not one token

    def test_cancelled_stream_ends_the_work(self):
        aborted = self.server.metric("num_aborted_requests_total")
        stream = self.chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        for _, _ in zip(range(3), stream):
            pass
        stream.close()
        self.wait_for(lambda: self.server.metric("num_running_reqs") == 0)
        self.assertEqual(self.server.metric("num_aborted_requests_total"), aborted + 1)
        self.wait_for(lambda: self.server.metric("num_used_tokens") == 0)

    def test_client_timeout_ends_the_work(self):
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).chat.completions.create(
                model="any", messages=QUESTION, max_tokens=4000, extra_body={"ignore_eos": True})
        self.wait_for(lambda: self.server.metric("num_running_reqs") == 0)

    def test_many_at_once(self):
        expected = self.chat().choices[0].message.content
        texts = [None] * 16

        def ask(i):
            texts[i] = "".join(chunk.choices[0].delta.content or "" for chunk in self.chat(stream=True))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(texts), {expected})

    def test_second_time_hits_the_cache(self):
        salt = str(time.time())
        prompt = "A story about a fox, a crow and a piece of cheese, told slowly. " * 4
        first = self.complete(prompt=prompt, extra_body={"cache_salt": salt})
        second = self.complete(prompt=prompt, extra_body={"cache_salt": salt})
        other = self.complete(prompt=prompt, extra_body={"cache_salt": salt + "x"})
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 15)
        self.assertEqual(other.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(first.choices[0].text, second.choices[0].text)
