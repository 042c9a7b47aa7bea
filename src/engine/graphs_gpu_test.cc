// Decode by CUDA graphs against the same steps launched kernel by kernel: what a graph was captured
// with must not stay in it, and what fills it up must not show. Bug-log entries of kinds A, C and L
// that a whole engine can have. A made-up model, of the shape that every backend serves.
#include <gtest/gtest.h>

#include <random>

#include "device/device.h"
#include "engine/testing.h"
#include "formats/test_files.h"

namespace attune {
namespace {

using engine::testing::expect_nothing_held;
using engine::testing::make_engine;
using engine::testing::start;
using engine::testing::Started;

constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 32768,
  "initializer_range": 0.1, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
  "tie_word_embeddings": false})";
// A wrong page or length moves a log-probability by about their deviation, 1.6; the order of
// bfloat16 sums by hundredths.
constexpr double kNear = 0.15;

std::vector<TokenId> random_prompt(int32_t length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(static_cast<size_t>(length));
  for (TokenId& id : ids) id = static_cast<TokenId>(3 + random() % 500);
  return ids;
}

SamplingParams greedy(int32_t tokens) {
  return {.temperature = 0, .max_new_tokens = tokens, .ignore_eos = true, .top_logprobs = 2};
}

// The same text, up to a choice that is a toss-up.
void expect_same_text(const Started& got, const Started& want, double near, const std::string& of) {
  ASSERT_EQ(got->error, "") << of;
  ASSERT_EQ(got->tokens.size(), want->tokens.size()) << of;
  for (size_t i = 0; i < want->tokens.size(); ++i) {
    const LogprobEntry &g = got->logprobs[i], &w = want->logprobs[i];
    if (got->tokens[i] != want->tokens[i]) {
      EXPECT_LT(w.top[0].logprob - w.top[1].logprob, 2 * near) << of << ", token " << i;
      return;
    }
    EXPECT_NEAR(g.chosen.logprob, w.chosen.logprob, near) << of << ", token " << i;
  }
}

class EngineGraphs : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto device = ::attune::device::create_cuda_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    set_config(kConfig);
    options_.load_format = "dummy";
    options_.device = "cuda";
    options_.attention_backend = GetParam();
    options_.max_total_tokens = 65536;
    options_.max_running_requests = 32;
    options_.cuda_graph_max_bs = 16;
    options_.disable_radix_cache = true;
    options_.cuda_libraries = engine::testing::cuda_libraries();
    eager_ = options_;
    eager_.disable_cuda_graph = true;
  }
  void set_config(const std::string& config) {
    folder_.write("config.json", config);
    options_.model = folder_.path();
  }
  static Started finished(Engine& engine, const std::vector<TokenId>& prompt, int32_t tokens) {
    Started run = start(engine, prompt, greedy(tokens));
    run->wait();
    return run;
  }

  // The oracle takes its time.
  static int32_t long_prompt(int32_t length) {
    return GetParam() == std::string("reference") ? length / 10 : length;
  }

  formats::TempFolder folder_;
  Options options_, eager_;
};

// Every batch size, among them those that a graph of the next size serves, at several page sizes.
TEST_P(EngineGraphs, BugC01AndC02RowsThatFillUpDoNotShow) {
  constexpr int32_t kMost = 18, kTokens = 6;  // two beyond the largest graph
  for (const int32_t page : {1, 16, 64}) {
    options_.page_size = eager_.page_size = page;
    auto graphs = make_engine(options_), eager = make_engine(eager_);
    ASSERT_TRUE(graphs && eager);
    std::vector<std::vector<TokenId>> prompts;
    std::vector<Started> want;
    for (int32_t i = 0; i < kMost; ++i) {
      prompts.push_back(random_prompt(3 + 11 * i % 83, static_cast<uint32_t>(i)));
      want.push_back(finished(*eager, prompts.back(), kTokens));
    }
    for (int32_t size = 1; size <= kMost; ++size) {
      std::vector<Started> got;
      for (int32_t i = 0; i < size; ++i) got.push_back(start(*graphs, prompts[i], greedy(kTokens)));
      for (int32_t i = 0; i < size; ++i) {
        got[i]->wait();
        expect_same_text(got[i], want[i], kNear,
                         "row " + std::to_string(i) + " of " + std::to_string(size) + ", page " +
                             std::to_string(page));
      }
    }
    expect_nothing_held(*graphs);
  }
}

// Captured at one length, replayed at others: nothing that was planned for it stays.
TEST_P(EngineGraphs, BugC05ReplayAtOtherLengths) {
  auto graphs = make_engine(options_), eager = make_engine(eager_);
  ASSERT_TRUE(graphs && eager);
  for (const int32_t length : {35, 36, 300, 2400, long_prompt(20000), 40}) {
    const std::vector<TokenId> prompt = random_prompt(length, static_cast<uint32_t>(length));
    expect_same_text(finished(*graphs, prompt, 8), finished(*eager, prompt, 8), kNear,
                     "length " + std::to_string(length));
  }
}

// Two requests in turn through one graph.
TEST_P(EngineGraphs, BugC06EachReplayReadsItsOwnStep) {
  auto graphs = make_engine(options_), eager = make_engine(eager_);
  ASSERT_TRUE(graphs && eager);
  const std::vector<TokenId> prompts[2] = {random_prompt(70, 1), random_prompt(45, 2)};
  const Started want[2] = {finished(*eager, prompts[0], 5), finished(*eager, prompts[1], 5)};
  for (int32_t i = 0; i < 50; ++i)
    expect_same_text(finished(*graphs, prompts[i % 2], 5), want[i % 2], kNear,
                     "turn " + std::to_string(i));
}

// Captures write nothing but their own step's pages, and padding nothing at all: what was cached
// before is what it was.
TEST_P(EngineGraphs, BugC07CapturesLeaveThePoolAsItWas) {
  options_.disable_radix_cache = false;
  auto graphs = make_engine(options_), eager = make_engine(eager_);
  ASSERT_TRUE(graphs && eager);
  std::vector<TokenId> text = random_prompt(200, 3);
  const Started before = finished(*graphs, text, 40);
  text.insert(text.end(), before->tokens.begin(), before->tokens.end());
  for (const int32_t size : {2, 3, 5, 9, 13}) {
    std::vector<Started> others;
    for (int32_t i = 0; i < size; ++i)
      others.push_back(
          start(*graphs, random_prompt(20 + i, static_cast<uint32_t>(100 + i)), greedy(6)));
    for (Started& other : others) other->wait();
  }
  const Started after = finished(*graphs, text, 12);
  EXPECT_GE(after->usage.cached_tokens, 192);  // whole pages of the largest size
  expect_same_text(after, finished(*eager, text, 12), kNear, "from the cache");
}

// The host is a step ahead while long prompts keep the device busy, and every step has other
// tables: what it writes for the next step must not reach this one.
TEST_P(EngineGraphs, BugC10StepsInFlightKeepTheirTables) {
  Options serial = options_;
  serial.disable_overlap_schedule = true;
  auto ahead = make_engine(options_), after = make_engine(serial);
  ASSERT_TRUE(ahead && after);
  const auto run = [](Engine& engine) {
    std::vector<Started> all;
    for (int32_t i = 0; i < 12; ++i) {
      all.push_back(
          start(engine, random_prompt(10 + 7 * i, static_cast<uint32_t>(i)), greedy(100 - 3 * i)));
      if (i % 4 == 3)
        all.push_back(start(engine, random_prompt(long_prompt(8000), static_cast<uint32_t>(50 + i)),
                            greedy(9)));
    }
    for (Started& s : all) s->wait();
    return all;
  };
  const std::vector<Started> got = run(*ahead), want = run(*after);
  for (size_t i = 0; i < want.size(); ++i)
    expect_same_text(got[i], want[i], kNear, "request " + std::to_string(i));
}

// Kernels that start before the last has ended read nothing that is not there yet: the same bits.
TEST_P(EngineGraphs, BugL16AndL17DependentLaunchChangesNoBit) {
  Options on = options_, off = options_;
  on.enable_pdl = "on";
  off.enable_pdl = "off";
  const auto run = [](const Options& options) {
    std::vector<Started> all;
    auto engine = make_engine(options);
    if (!engine) return all;
    all.push_back(finished(*engine, random_prompt(33, 1), 1000));
    for (uint32_t i = 0; i < 6; ++i)
      all.push_back(
          start(*engine, random_prompt(20 + 9 * static_cast<int32_t>(i), i), greedy(150)));
    for (Started& s : all) s->wait();
    return all;
  };
  // Together they may be admitted in other steps, whose sums have another order: alone, bits.
  const std::vector<Started> got = run(on), want = run(off);
  ASSERT_EQ(got.size(), 7u);
  ASSERT_EQ(want.size(), 7u);
  EXPECT_EQ(got[0]->tokens, want[0]->tokens);
  int64_t differ = 0;
  for (size_t i = 0; i < 1000; ++i)
    differ += got[0]->logprobs[i].chosen.logprob != want[0]->logprobs[i].chosen.logprob;
  EXPECT_EQ(differ, 0) << "of 1000 steps";
  for (size_t i = 1; i < 7; ++i)
    expect_same_text(got[i], want[i], kNear, "request " + std::to_string(i));
}

// The host's work for a step of 64 sequences is counted, and small: the report's engine, which took
// 580 us where the device could see them, lost a tenth of its speed. (A loaded machine may take
// longer.)
TEST_P(EngineGraphs, BugL08TheHostsWorkIsKnown) {
  options_.max_running_requests = options_.cuda_graph_max_bs = 64;
  auto engine = make_engine(options_);
  ASSERT_TRUE(engine);
  const auto decode = [&] {
    std::vector<Started> all;
    for (uint32_t i = 0; i < 64; ++i)
      all.push_back(start(*engine, random_prompt(8, i),
                          {.temperature = 0, .max_new_tokens = 200, .ignore_eos = true}));
    for (Started& s : all) s->wait();
  };
  decode();  // captures
  const EngineStats before = engine->stats();
  decode();
  const EngineStats after = engine->stats();
  const double steps = static_cast<double>(after.steps - before.steps);
  ASSERT_GE(steps, 200);
  const double each = (after.host_seconds - before.host_seconds) / steps;
  std::printf("%.0f us of the host for a step of 64 sequences\n", each * 1e6);
  EXPECT_GT(each, 0);
  EXPECT_LT(each, 1e-3);
}

// Prompts that share whole pages and a part of one: all but less than a page is found, and the text
// is that of a cold start.
TEST_P(EngineGraphs, BugL18APartOfAPageCostsLessThanAPage) {
  options_.disable_radix_cache = false;
  options_.page_size = eager_.page_size = 64;
  auto graphs = make_engine(options_), eager = make_engine(eager_);
  ASSERT_TRUE(graphs && eager);
  const std::vector<TokenId> shared = random_prompt(5 * 64 + 33, 4);
  finished(*graphs, shared, 4);
  for (uint32_t i = 0; i < 3; ++i) {
    std::vector<TokenId> prompt = shared;
    const std::vector<TokenId> tail = random_prompt(20 + 30 * static_cast<int32_t>(i), 9 + i);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    const Started got = finished(*graphs, prompt, 8);
    EXPECT_GE(got->usage.cached_tokens, 5 * 64);
    EXPECT_LE(got->usage.cached_tokens, 5 * 64 + 33);
    expect_same_text(got, finished(*eager, prompt, 8), kNear, "tail " + std::to_string(i));
  }
}

// 28 heads over 4, as Qwen2-7B has: the CPU's text.
TEST_P(EngineGraphs, BugA04SevenHeadsToAKey) {
  std::string config = kConfig;
  config.replace(config.find("heads\": 4"), 9, "heads\": 28");
  config.replace(config.find("value_heads\": 2"), 15, "value_heads\": 4");
  set_config(config);
  Options cpu = options_;
  cpu.device = "cpu";
  cpu.attention_backend = "";
  cpu.dtype = "float32";
  auto gpu = make_engine(options_), host = make_engine(cpu);
  ASSERT_TRUE(gpu && host);
  for (const int32_t length : {1, 17, 130}) {
    const std::vector<TokenId> prompt = random_prompt(length, static_cast<uint32_t>(length));
    expect_same_text(finished(*gpu, prompt, 8), finished(*host, prompt, 8), 2 * kNear,
                     "length " + std::to_string(length));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineGraphs, ::testing::Values("", "reference", "fa3"),
                         [](const auto& info) {
                           return std::string(info.param[0] ? info.param : "chosen");
                         });

}  // namespace
}  // namespace attune
