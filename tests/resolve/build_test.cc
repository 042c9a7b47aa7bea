// Which build is spoken of: --without, --assume; and the bugs of others that a resolver must not
// repeat, each named after its entry.
#include "explain.h"

namespace attune::resolve {
namespace {

using attention::Capabilities;
using tensor::DType;
using testing::AllOf;
using testing::HasSubstr;

TEST(Build, WithoutTakesBackendsOut) {
  const Resolution r = explain("sm90", "llama3-8b", "--without fa3,cudnn");
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(names(r, Phase::kDecode), (Names{"flashinfer", "reference"}));
  EXPECT_EQ(why_refused(r, "fa3", Phase::kDecode), "built without fa3");
  const Resolution none = explain("sm80", "llama3-8b", "--without flashinfer,cudnn,reference");
  EXPECT_TRUE(names(none, Phase::kDecode).empty());
  EXPECT_THAT(none.conflicts.at(0).text, HasSubstr("no backend serves prefill"));
}

TEST(Build, AssumeOverridesWhatASimulatedBackendDeclares) {
  const Resolution r =
      explain("sm90", "llama3-8b",
              "--speculative-eagle-topk 4 --assume fa3:tree-mask=off,flashinfer:tree_mask=on");
  EXPECT_EQ(head(r, Phase::kVerify), "flashinfer");
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", "--assume fa3:tree-mask"), "assume"),
              HasSubstr("NAME:capability=on|off"));
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", "--assume fa3:tree-mask=maybe"), "assume"),
              HasSubstr("NAME:capability=on|off"));
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", "--assume fa3:tree-mast=on"), "assume"),
              HasSubstr("did you mean tree-mask?"));
  EXPECT_THAT(only_conflict(explain("sm90", "llama3-8b", "--assume fa4:tree-mask=on"), "S8"),
              HasSubstr("did you mean fa3?"));
}

// On a device that is there a capability may be given up, never claimed.
TEST(Build, AssumeTakesAwayOnARealDevice) {
  const Resolution r = resolve(real_inputs(
      "cpu", "llama3-8b", "--enable-hierarchical-cache --assume cpu:tolerates-host-copies=off"));
  EXPECT_TRUE(r.conflicts.empty());
  EXPECT_EQ(head(r, Phase::kDecode), "reference");
  EXPECT_THAT(only_conflict(resolve(real_inputs("sm90", "llama3-8b",
                                                "--assume fa3:tolerates-host-copies=on")),
                            "assume"),
              AllOf(HasSubstr("not shown"), HasSubstr("use off, or simulate a device")));
}

TEST(Build, EveryDescriptorIsWhole) {
  const std::vector<Descriptor> all = all_descriptors();
  for (const char* name : {"reference", "cpu", "fa3", "flashinfer", "cudnn", "flashinfer_mla",
                           "flashmla", "trtllm_mla"}) {
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const Descriptor& d) { return d.capabilities.name == name; });
    ASSERT_NE(it, all.end()) << name;
    const Capabilities& c = it->capabilities;
    EXPECT_FALSE(c.archs.empty() || c.kinds.empty() || c.phases.empty() || c.q_dtypes.empty() ||
                 c.kv_dtypes.empty())
        << name;
    EXPECT_TRUE(!c.head_dims.empty() || c.max_head_dim > 0) << name;
    const bool mla = std::count(c.kinds.begin(), c.kinds.end(), attention::AttentionKind::kMla);
    const bool prefill = std::count(c.phases.begin(), c.phases.end(), Phase::kPrefill);
    EXPECT_EQ(!c.extend_paths.empty(), mla && prefill) << name;
    // Built, or told why not; what is built can be made.
    const attention::BackendEntry* entry = attention::find_backend(name);
    EXPECT_EQ(entry->create == nullptr, !entry->unavailable.empty()) << name;
  }
}

TEST(Build, ThePreferenceTableNamesOnlyWhatThereIs) {
  const Preferences& p = default_preferences();
  auto known = [](const std::string& name) { EXPECT_TRUE(attention::find_backend(name)) << name; };
  for (const PreferenceRow& row : p.orders)
    for (const std::string& name : row.order) known(name);
  for (const SafeDecodeRow& row : p.safe_decode)
    for (const std::string& name : row.order) known(name);
  for (const AliasRow& row : p.aliases) known(row.meant);
  for (const MeasuredCell& cell : p.measured)
    for (const std::string& name : cell.order) known(name);
  for (const PreferenceRow& row : p.orders) EXPECT_EQ(row.order.back(), "reference") << row.rule;
}

TEST(Build, EveryDeviceAndKindHasOneOrderForEachPhase) {
  for (const std::string& name : simulated_device_names())
    for (auto kind : {attention::AttentionKind::kMha, attention::AttentionKind::kMla})
      for (Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        int rows = 0;
        for (const PreferenceRow& row : default_preferences().orders)
          rows += row.kind == kind && std::count(row.phases.begin(), row.phases.end(), phase) &&
                  std::count(row.archs.begin(), row.archs.end(), simulated_device(name)->arch);
        EXPECT_EQ(rows, 1) << name;
      }
}

// Every combination is served as asked or refused with a reason, never taken and ignored.
TEST(BugB02, AMatrixOfWhatIsAskedIsServedOrRefused) {
  int served = 0, refused = 0;
  for (const Descriptor& d : all_descriptors())
    for (const char* kv : {"auto", "float32", "bfloat16", "fp8_e4m3", "fp8_e5m2"})
      for (int32_t dim : {64, 80, 96, 128, 256, 512})
        for (const char* page : {"0", "1", "16", "64"})
          for (int special = 0; special < 4; ++special) {
            const bool cpu = d.capabilities.name == "cpu";
            Inputs in = inputs(cpu ? "cpu" : "sm90", "llama3-8b",
                               "--attention-backend " + d.capabilities.name + " --kv-cache-dtype " +
                                   kv + " --page-size " + page);
            if (d.capabilities.kinds == std::vector{attention::AttentionKind::kMla})
              in.model = *model_preset("deepseek-v3");
            else
              in.model.head = {dim, dim};
            in.model.window = special == 1;
            in.model.soft_cap = special == 2;
            in.model.sinks = special == 3;
            const Resolution r = resolve(in);
            if (r.conflicts.empty()) {
              ++served;
              ASSERT_EQ(head(r, Phase::kDecode), d.capabilities.name);
              ASSERT_EQ(head(r, Phase::kPrefill), d.capabilities.name);
              ASSERT_TRUE(std::string(kv) == "auto" ||
                          tensor::dtype_name(r.kv_dtype) == std::string(kv));
              ASSERT_TRUE(std::string(page) == "0" || std::to_string(r.page_size) == page);
              const Capabilities& c = d.capabilities;
              ASSERT_TRUE(c.window >= in.model.window && c.soft_cap >= in.model.soft_cap &&
                          c.sinks >= in.model.sinks);
              ASSERT_TRUE(std::count(c.kv_dtypes.begin(), c.kv_dtypes.end(), r.kv_dtype));
            } else {
              ++refused;
              for (const Conflict& conflict : r.conflicts) {
                ASSERT_FALSE(conflict.flags.empty() || conflict.text.empty() ||
                             conflict.mend.empty());
              }
            }
          }
  EXPECT_GT(served, 200);
  EXPECT_GT(refused, 1000);
}

// Two backends serve every phase, whichever they are.
TEST(BugB04, AHybridHasAListForEveryPhase) {
  for (const char* prefill : {"fa3", "flashinfer", "cudnn", "reference"})
    for (const char* decode : {"fa3", "flashinfer", "cudnn", "reference"})
      for (const char* mode : {"prefill", "decode"}) {
        const Resolution r = explain("sm90", "llama3-8b",
                                     std::string("--prefill-attention-backend ") + prefill +
                                         " --decode-attention-backend " + decode +
                                         " --speculative-attention-mode " + mode);
        EXPECT_TRUE(r.conflicts.empty());
        EXPECT_EQ(r.hybrid, prefill != std::string(decode));
        for (Phase phase : kAllPhases) EXPECT_FALSE(names(r, phase).empty());
      }
}

// A draft model is resolved from its own shape.
TEST(BugB06, TargetAndDraftAreResolvedApart) {
  Inputs in = inputs("sm90", "deepseek-v3", "");
  EXPECT_EQ(head(resolve(in), Phase::kVerify), "flashinfer_mla");
  in.model = *model_preset("smollm2");
  const Resolution draft = resolve(in);
  EXPECT_TRUE(draft.conflicts.empty());
  EXPECT_EQ(head(draft, Phase::kDecode), "fa3");
  EXPECT_EQ(head(draft, Phase::kDraftExtend), "fa3");
}

// Sizes between those built go to a general kernel.
TEST(BugB09, OddHeadSizesAreServedByWhoCan) {
  for (int32_t dim : {72, 80, 96, 112}) {
    Inputs in = inputs("sm90", "llama3-8b", "");
    in.model.head = {dim, dim};
    const Resolution r = resolve(in);
    EXPECT_TRUE(r.conflicts.empty()) << dim;
    EXPECT_EQ(head(r, Phase::kDecode), "reference") << dim;
  }
}

// What is printed is what was resolved.
TEST(BugB10, TheTableTellsTheResolvedState) {
  EXPECT_THAT(to_table(explain("cpu", "deepseek-v2-lite")), HasSubstr("chunked prefix on"));
  EXPECT_THAT(to_table(explain("cpu", "deepseek-v2-lite", "--disable-chunked-prefix-cache")),
              AllOf(HasSubstr("chunked prefix off"), HasSubstr("ragged, absorbed;")));
  EXPECT_THAT(to_table(explain("cpu", "llama3-8b")), HasSubstr("graphs        off"));
  const std::string moved =
      to_table(explain("sm90", "llama3-8b",
                       "--enable-hierarchical-cache --page-size 16 --assume "
                       "fa3:tolerates-host-copies=off --attention-backend fa3"));
  EXPECT_THAT(moved, HasSubstr("IO direct"));
}

// Every value that help shows is taken here or refused with a reason.
TEST(BugB11, EveryChoiceOfEveryFlagIsAnswered) {
  Options defaults;
  for (const base::Flag& flag : base::option_flags(defaults))
    for (std::string_view choice : flag.rule.choices)
      for (const char* device : {"cpu", "sm80", "sm90"})
        for (const char* model : {"llama3-8b", "deepseek-v3"}) {
          const Resolution r =
              explain(device, model, "--" + std::string(flag.name) + " " + std::string(choice));
          if (r.conflicts.empty()) {
            for (Phase phase : kAllPhases) EXPECT_FALSE(names(r, phase).empty());
          } else {
            EXPECT_THAT(r.conflicts[0].text, HasSubstr(std::string(choice)));
            EXPECT_FALSE(r.conflicts[0].mend.empty());
          }
        }
}

// Nobody is passed over in silence.
TEST(BugB12, EveryBackendIsACandidateOrRefusedWithAReasonAndTheTableTellsIt) {
  for (const char* device : {"cpu", "sm80", "sm89", "sm90", "sm100"})
    for (const std::string& model : model_preset_names()) {
      const Resolution r = explain(device, model);
      for (Phase phase : kAllPhases)
        for (const Descriptor& d : all_descriptors()) {
          const Names list = names(r, phase);
          const std::string& name = d.capabilities.name;
          const std::string why = why_refused(r, name, phase);
          EXPECT_EQ(std::count(list.begin(), list.end(), name), why.empty() ? 1 : 0) << name;
          if (!why.empty()) {
            EXPECT_THAT(to_table(r), HasSubstr(why));
          }
        }
    }
}

}  // namespace
}  // namespace attune::resolve
