// Random option sets: always an answer, never against what was set, one answer however they are
// written.
#include <random>

#include "explain.h"

namespace attune::resolve {
namespace {

using Setting = std::pair<std::string, std::string>;  // "page-size", "16"

struct Draw {
  const char* flag;
  std::vector<const char*> values;
};

// Few values each, so that they meet; some are refused.
const std::vector<Draw>& draws() {
  static const std::vector<const char*> backends = {
      "fa3",        "flashinfer", "cudnn",     "flashinfer_mla", "flashmla",
      "trtllm_mla", "cpu",        "reference", "nonesuch"};
  static const std::vector<Draw> table = {
      {"attention-backend", backends},
      {"prefill-attention-backend", backends},
      {"decode-attention-backend", backends},
      {"speculative-attention-mode", {"prefill", "decode"}},
      {"speculative-eagle-topk", {"1", "4"}},
      {"no-attention-fallback", {"true", "false"}},
      {"page-size", {"0", "1", "16", "32", "48", "64", "128"}},
      {"dtype", {"auto", "float32", "bfloat16", "float16"}},
      {"kv-cache-dtype", {"auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"}},
      {"disable-chunked-prefix-cache", {"true", "false"}},
      {"chunked-prefix-capacity", {"0", "100", "65536"}},
      {"mla-absorb-below", {"-1", "0", "600"}},
      {"num-splits", {"0", "1", "4"}},
      {"pack-gqa", {"auto", "on", "off"}},
      {"enable-pdl", {"auto", "on", "off"}},
      {"disable-cuda-graph", {"true", "false"}},
      {"cuda-graph-max-bs", {"0", "7"}},
      {"enable-deterministic-inference", {"true", "false"}},
      {"disable-radix-cache", {"true", "false"}},
      {"enable-hierarchical-cache", {"true", "true", "false"}},
      {"hicache-io-backend", {"auto", "kernel", "direct"}},
      {"hicache-mem-layout", {"auto", "layer_first", "page_first", "page_first_direct"}},
      {"hicache-ratio", {"0", "0.5", "3"}},
      {"hicache-size", {"0", "64"}},
      {"hicache-storage-backend", {"none", "file", "redis"}},
  };
  return table;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  size_t below(size_t n) { return engine_() % n; }
  template <typename T>
  const T& pick(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::mt19937 engine_;
};

std::vector<Setting> draw(Random& random) {
  std::vector<Setting> settings;
  for (const Draw& d : draws())
    if (random.below(5) == 0) settings.emplace_back(d.flag, random.pick(d.values));
  random.shuffle(settings);
  return settings;
}

// Each setting by a way of its own: two spellings of a flag, the environment, a file.
Options written(const std::vector<Setting>& set, Random& random) {
  std::vector<std::string> args, environment;
  std::vector<base::ConfigEntry> config;
  for (const auto& [flag, value] : set) {
    std::string snake = flag;
    std::replace(snake.begin(), snake.end(), '-', '_');
    switch (random.below(4)) {
      case 0:
        args.push_back("--" + flag + "=" + value);
        break;
      case 1:
        if (value == "true") {
          args.push_back("--" + snake);
        } else if (value == "false") {
          args.push_back("--no-" + flag);
        } else {
          args.insert(args.end(), {"--" + snake, value});
        }
        break;
      case 2:
        environment.push_back(base::environment_name(flag) + "=" + value);
        break;
      default:
        config.push_back({snake, {value}});
    }
  }
  base::Settings settings;
  EXPECT_TRUE(settings.apply_config("file", config).ok());
  EXPECT_TRUE(settings.apply_environment(environment).ok());
  EXPECT_TRUE(settings.apply_args(args).ok());
  return settings.options();
}

std::string canonical(const Inputs& in, const std::string& name) {
  for (const AliasRow& alias : in.preferences.aliases)
    if (alias.kind == in.model.kind && alias.name == name) return alias.meant;
  return name;
}

const attention::Capabilities& declared(const std::string& name) {
  return attention::find_backend(name)->capabilities;
}

// What was set stands in the answer.
void check_set(const Inputs& in, const Resolution& r) {
  const Options& o = in.settings;
  for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const std::string& own =
        phase == Phase::kDecode ? o.decode_attention_backend : o.prefill_attention_backend;
    const std::string& name = own.empty() ? o.attention_backend : own;
    if (!name.empty()) {
      ASSERT_EQ(head(r, phase), canonical(in, name));
    }
    if (!name.empty() && o.no_attention_fallback) {
      ASSERT_EQ(r.of(phase).size(), 1u);
    }
  }
  if (o.page_size > 0) {
    ASSERT_EQ(r.page_size, o.page_size);
  }
  if (o.dtype != "auto") {
    ASSERT_EQ(tensor::dtype_name(r.activation_dtype), o.dtype);
  }
  if (o.kv_cache_dtype != "auto") {
    ASSERT_EQ(tensor::dtype_name(r.kv_dtype), o.kv_cache_dtype);
  }
  ASSERT_EQ(r.tuning.num_splits, o.num_splits);
  ASSERT_TRUE(o.pack_gqa == "auto" ||
              (r.tuning.pack_gqa == attention::Toggle::kOn) == (o.pack_gqa == "on"));
  ASSERT_TRUE(o.enable_pdl == "auto" ||
              (r.tuning.pdl == attention::Toggle::kOn) == (o.enable_pdl == "on"));
  ASSERT_FALSE(o.disable_cuda_graph && r.graphs.enabled);
  ASSERT_TRUE(!r.graphs.enabled || o.cuda_graph_max_bs == 0 ||
              r.graphs.max_bs == o.cuda_graph_max_bs);
  ASSERT_EQ(r.mla.has_value(), in.model.kind == attention::AttentionKind::kMla);
  if (r.mla) {
    // Where no candidate takes chunks (M2) it is off; the oracle counts only as the first.
    const auto& list = r.of(Phase::kPrefill);
    const bool taken = std::any_of(list.begin(), list.end(), [&](const Candidate& c) {
      for (const Descriptor& d : in.backends)
        if (d.capabilities.name == c.backend)
          return (!d.capabilities.oracle || c.backend == list[0].backend) &&
                 attention::takes_path(d.capabilities, attention::Path::kChunked);
      return false;
    });
    ASSERT_EQ(r.mla->policy.chunked_prefix, !o.disable_chunked_prefix_cache && taken);
    ASSERT_TRUE(o.mla_absorb_below < 0 || r.mla->policy.absorb_below == o.mla_absorb_below);
    ASSERT_TRUE(o.chunked_prefix_capacity == 0 ||
                r.mla->policy.capacity == o.chunked_prefix_capacity);
    ASSERT_FALSE(r.mla->paths.empty());
  }
  ASSERT_EQ(r.hicache.has_value(), o.enable_hierarchical_cache);
  if (r.hicache) {
    ASSERT_TRUE(o.hicache_io_backend == "auto" || r.hicache->io_backend == o.hicache_io_backend);
    ASSERT_TRUE(o.hicache_mem_layout == "auto" || r.hicache->mem_layout == o.hicache_mem_layout);
    ASSERT_TRUE(o.hicache_ratio == 0 || r.hicache->ratio == o.hicache_ratio);
  }
}

// The answer holds together.
void check_whole(const Inputs& in, const Resolution& r) {
  const Options& o = in.settings;
  ASSERT_FALSE(r.of(Phase::kPrefill).empty() || r.of(Phase::kDecode).empty());
  ASSERT_EQ(r.hybrid, head(r, Phase::kPrefill) != head(r, Phase::kDecode));
  for (Phase phase : kAllPhases)
    for (const Candidate& candidate : r.of(phase)) {
      const attention::Capabilities& c = declared(candidate.backend);
      ASSERT_TRUE(c.page_sizes.empty() ||
                  std::count(c.page_sizes.begin(), c.page_sizes.end(), r.page_size));
      ASSERT_TRUE(std::count(c.kv_dtypes.begin(), c.kv_dtypes.end(), r.kv_dtype));
      ASSERT_TRUE(!c.kv_as_q || r.kv_dtype == r.activation_dtype);
      ASSERT_TRUE(std::count(c.q_dtypes.begin(), c.q_dtypes.end(), r.activation_dtype));
      ASSERT_TRUE(std::count(c.archs.begin(), c.archs.end(), in.device.arch));
      ASSERT_TRUE(std::count(c.phases.begin(), c.phases.end(), phase));
      ASSERT_TRUE(c.batch_invariant || !o.enable_deterministic_inference);
      ASSERT_TRUE(phase != Phase::kVerify || c.tree_mask || o.speculative_eagle_topk == 1);
      ASSERT_EQ(why_refused(r, candidate.backend, phase), "");
    }
  if (r.hicache) {
    ASSERT_TRUE(o.hicache_mem_layout != "page_first" || r.hicache->io_backend == "kernel");
    const bool moved = has_rule(r, "H2");
    ASSERT_TRUE(!moved || r.hicache->io_backend == "kernel");
    const std::string spoilt = in.build.assume.empty() ? "" : in.build.assume[0];
    ASSERT_TRUE(r.hicache->io_backend == "direct" ||
                spoilt.find(head(r, Phase::kDecode) + ":") != 0);  // H2 to H4
  }
}

// "use --page-size 64; or use --attention-backend with one of: a, b": what a mend offers.
std::vector<Setting> offers(const std::string& mend) {
  std::vector<Setting> all;
  for (size_t at = mend.find("use --"); at != std::string::npos; at = mend.find("use --", at + 1)) {
    std::istringstream words(mend.substr(at + 6));
    std::string flag, word;
    words >> flag >> word;
    if (flag.ends_with(';') || word.empty()) {  // a switch
      all.emplace_back(flag.substr(0, flag.find(';')), "true");
      continue;
    }
    const bool list = word == "with";
    if (list) words >> word >> word >> word;
    for (bool more = true; more; more = list && more && words >> word) {
      more = word.ends_with(',');
      all.emplace_back(flag, word.substr(0, word.find_first_of(",;")));
    }
  }
  return all;
}

// Each way that a conflict offers ends that conflict.
void check_mends(const Inputs& in, const Resolution& r) {
  for (const Conflict& c : r.conflicts)
    for (const auto& [flag, value] : offers(c.mend)) {
      Inputs mended = in;
      const auto rows = base::option_flags(mended.settings);
      const base::Flag* row = base::find_flag(rows, flag);
      ASSERT_TRUE(row && base::set_flag(*row, flag, value).ok()) << c.mend;
      for (const Conflict& left : resolve(mended).conflicts)
        ASSERT_FALSE(left.rule == c.rule && left.flags == c.flags)
            << c.text << " | --" << flag << " " << value << " | " << left.text;
    }
}

TEST(Property, AnyOptionSetIsAnsweredAsItWasSetHoweverItIsWritten) {
  Random random(20261129);
  int clean = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    Inputs in =
        inputs(random.pick(simulated_device_names()), random.pick(model_preset_names()), "");
    if (round % 2 == 0) in = with_flashmla(in);
    if (random.below(3) == 0)
      in.build.without = {random.pick(Names{"fa3", "flashinfer", "cudnn", "flashmla"})};
    if (random.below(3) == 0)
      in.build.assume = {random.pick(Names{"fa3", "flashmla", "trtllm_mla", "cpu"}) +
                         ":tolerates-host-copies=off"};
    std::vector<Setting> set = draw(random);
    in.settings = written(set, random);
    const Resolution r = resolve(in);

    std::string told;
    for (const auto& [flag, value] : set) told += " --" + flag + " " + value;
    SCOPED_TRACE(in.device.name + told);
    if (r.conflicts.empty()) {
      ++clean;
      check_set(in, r);
      check_whole(in, r);
    } else {
      ++refused;
      for (const Conflict& c : r.conflicts) {
        ASSERT_FALSE(c.flags.empty() || c.text.empty() || c.mend.empty());
        for (const std::string& flag : c.flags) ASSERT_TRUE(flag.starts_with("--"));
      }
      check_mends(in, r);
      ASSERT_TRUE(in.settings.page_size == 0 || r.page_size == in.settings.page_size);
    }
    random.shuffle(set);
    Inputs again = in;
    again.settings = written(set, random);
    ASSERT_EQ(to_json(resolve(again)), to_json(r));
    if (HasFatalFailure()) return;
  }
  // Both happen often, so that both are tested.
  EXPECT_GT(clean, 1500);
  EXPECT_GT(refused, 1500);
}

}  // namespace
}  // namespace attune::resolve
