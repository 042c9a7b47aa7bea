// For tests: the golden models of tests/golden/families, and what becomes of them when changed.
#pragma once

#include <gtest/gtest.h>

#include "formats/dequant.h"
#include "formats/test_families.h"
#include "formats/test_files.h"

namespace attune::formats {

inline std::string golden_family(const std::string& name) {
  return std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/families/" + name;
}

inline LoadedModel open_golden(const std::string& name) {
  Result<LoadedModel> model = open_model(golden_family(name), "auto", 0);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? std::move(model).value() : LoadedModel();
}

// config.json of a golden model with members replaced; a null counts as absent.
inline Result<ModelConfig> changed_golden(const std::string& name, const std::string& members) {
  Result<Json> config = parse_json(read_file(golden_family(name) + "/config.json"));
  const Result<Json> changes = parse_json(members);
  EXPECT_TRUE(config.ok() && changes.ok()) << members;
  for (const auto& [key, value] : changes->as_object()) config->set(key, value);
  return model_config_from_hf(*config, nullptr);
}

inline std::vector<float> tensor_values(const WeightSource& weights, const std::string& name) {
  const std::optional<tensor::TensorView> view = weights.find(name);
  EXPECT_TRUE(view.has_value()) << name;
  if (!view) return {};
  std::vector<float> out(static_cast<size_t>(view->shape.elems()));
  EXPECT_TRUE(dequantize(view->dtype, view->data, out).ok());
  return out;
}

}  // namespace attune::formats
