// A model's weights by name, whatever holds them: GGUF, safetensors, or numbers made up for a test.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attune/status.h"
#include "formats/gguf.h"
#include "formats/model_config.h"
#include "tensor/tensor_view.h"

namespace attune::formats {

// Names are Hugging Face's in every source; GGUF's are mapped onto them. Below model.layers.N.:
//   input_layernorm.weight, post_attention_layernorm.weight [hidden]
//   self_attn.{q,k,v}_proj.weight [heads * head_dim, hidden], .o_proj.weight [hidden, heads *
//   v_head_dim], .{q,k,v,o}_proj.bias, .{q,k}_norm.weight [head_dim]
//   mlp.{gate,up}_proj.weight [inter, hidden], .down_proj.weight [hidden, inter], with .bias
// with latent attention:
//   self_attn.q_a_proj.weight [q_lora, hidden], .q_a_layernorm.weight [q_lora], .q_b_proj.weight
//   [heads * head_dim, q_lora], or q_proj as above; .kv_a_proj_with_mqa.weight [kv_lora + rope,
//   hidden], .kv_a_layernorm.weight [kv_lora], .kv_b_proj.weight [heads * (nope + v_head_dim),
//   kv_lora], or what GGUF has for it: .k_b_proj.weight [heads, kv_lora, nope], .v_b_proj.weight
//   [heads, v_head_dim, kv_lora]
// with experts:
//   mlp.gate.weight [experts, hidden], mlp.gate.e_score_correction_bias [experts],
//   mlp.experts.E.{gate,up,down}_proj.weight, mlp.shared_experts.{gate,up,down}_proj.weight
// and beside the layers model.embed_tokens.weight [vocab, hidden], model.norm.weight [hidden],
// lm_head.weight [vocab, hidden].
// Views stay valid as long as the source. Const methods are thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::optional<tensor::TensorView> find(std::string_view name) const = 0;
  // Shape and type as find() gives them, for little; the data is not to be read.
  virtual std::optional<tensor::TensorView> describe(std::string_view name) const {
    return find(name);
  }
  virtual std::vector<std::string> names() const = 0;  // sorted
  virtual int64_t bytes() const = 0;                   // of all tensors
  // The view's memory may go back to the system (it was repacked elsewhere); it stays readable.
  virtual void drop(const tensor::TensorView& view) const = 0;
  // data_loss when a file behind it has shrunk: call after loading, before serving.
  virtual Status check_intact() const = 0;
  // Of made-up weights, which are what config and seed say; nothing when they were read.
  virtual std::optional<uint64_t> seed() const { return std::nullopt; }
};

std::unique_ptr<WeightSource> gguf_weights(std::shared_ptr<const GgufFile> gguf);
// As SafetensorsModel::open.
Result<std::unique_ptr<WeightSource>> safetensors_weights(const std::string& folder);

struct TensorSpec {
  std::string name;
  tensor::Shape shape;
  bool optional = false;
  bool prefix = false;  // stands for all tensors whose names begin so; they are not read
};
// Every tensor that the config asks for, in the order of the layers.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);
// Errors: data_loss that lists missing tensors, those of another shape, and those that nothing
// would read (a bias that the config denies, a layer too many), each by name.
Status check_weights(std::span<const TensorSpec> specs, const WeightSource& weights);

// Deterministic random weights of config.dtype (float32, float16 or bfloat16): mean 0, standard
// deviation config.initializer_range; norms are 1. Equal for equal (specs, seed), whatever the
// machine. Errors: resource_exhausted when they do not fit the machine's memory, unsupported dtype.
Result<std::unique_ptr<WeightSource>> dummy_weights(std::span<const TensorSpec> specs,
                                                    const ModelConfig& config, uint64_t seed);

struct LoadedModel {
  ModelConfig config;
  std::unique_ptr<WeightSource> weights;  // checked against expected_tensors(config)
  std::string name;                       // the GGUF file's without .gguf, or the folder's
  std::string path;                       // as opened
  std::string folder;  // where tokenizer.json and the like lie; empty for a GGUF file
  std::shared_ptr<const GgufFile> gguf;  // null unless GGUF: the tokenizer reads its metadata
  int64_t parameters = 0;                // elements of all weights, a tied head counted once
  std::string weight_format;             // dtype name with most bytes: "q4_1"
};

// What a model's path stands for: a GGUF file, or a folder with a config.json.
struct ModelLocation {
  bool is_gguf = false;
  std::string file;    // the GGUF file, or config.json
  std::string folder;  // of config.json; empty for a GGUF file
  // Where the model's own tokenizer lies: inside the GGUF file, or in the folder.
  const std::string& text() const { return is_gguf ? file : folder; }
};
// `path`: a GGUF file, a folder with config.json and safetensors or one of the latter, a folder
// with one GGUF file; with load_format "dummy" a folder with config.json, or a config.json, or a
// GGUF file (its config alone). load_format: auto | gguf | safetensors | dummy. Errors: not_found
// with what there is instead, invalid_argument.
Result<ModelLocation> locate_model(const std::string& path, std::string_view load_format);
// Opens what lies there, as above.
Result<LoadedModel> open_model(const std::string& path, std::string_view load_format, uint64_t seed,
                               std::span<const FamilyTraits> families);

}  // namespace attune::formats
