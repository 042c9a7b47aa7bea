// attune inspect: what is in a model file, without loading it.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <variant>

#include "base/log.h"
#include "cli/command.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/weight_source.h"

namespace attune::cli {
namespace {

using formats::Json;

constexpr size_t kShownItems = 8;   // of an array, without --full
constexpr size_t kShownBytes = 96;  // of a string, without --full

struct TensorRow {
  std::string name;
  tensor::TensorView view;
  uint64_t offset = 0;
  std::string file;  // of a sharded model
};

// A model file in one form, whichever format it has.
struct Contents {
  std::string path;
  std::string format;
  uint64_t file_bytes = 0;
  Json::Object metadata;
  std::vector<TensorRow> tensors;
};

Json scalar_json(const formats::GgufValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, uint64_t>) {
          // JSON's integers end at 2^63 here; what is above is told as text rather than rounded.
          return v <= uint64_t{INT64_MAX} ? Json(static_cast<int64_t>(v)) : Json(std::to_string(v));
        } else if constexpr (std::is_same_v<T, formats::GgufArray>) {
          return nullptr;
        } else {
          return Json(v);
        }
      },
      value.value);
}

// Arrays as {"type", "count", "items"}: `items` holds the first ones, or all with `full`.
Result<Json> array_json(const formats::GgufFile& file, std::string_view key,
                        const formats::GgufArray& array, bool full) {
  Json items{Json::Array{}};
  auto take = [&](const auto& values) {
    size_t count = full ? values.size() : std::min(values.size(), kShownItems);
    for (size_t i = 0; i < count; ++i) items.push(Json(values[i]));
  };
  if (array.elem == formats::GgufType::kString) {
    take(array.strings);
  } else if (array.elem == formats::GgufType::kF32 || array.elem == formats::GgufType::kF64) {
    ATTUNE_ASSIGN_OR_RETURN(auto floats, file.get_floats(key));
    take(std::vector<double>(floats.begin(), floats.end()));
  } else {
    ATTUNE_ASSIGN_OR_RETURN(auto ints, file.get_ints(key));
    take(ints);
  }
  Json json;
  json.set("type", formats::gguf_type_name(array.elem));
  json.set("count", static_cast<int64_t>(array.count));
  json.set("items", std::move(items));
  return json;
}

Result<Contents> inspect_gguf(const std::string& path, bool full) {
  ATTUNE_ASSIGN_OR_RETURN(auto file, formats::GgufFile::open(path));
  Contents contents{path, base::cat("GGUF version ", file.version()), file.file_bytes(), {}, {}};
  for (const formats::GgufEntry& entry : file.metadata()) {
    Json value = scalar_json(entry.value);
    if (const auto* array = std::get_if<formats::GgufArray>(&entry.value.value)) {
      auto items = array_json(file, entry.key, *array, full);
      // An array that has no plain form (64-bit values out of range) is named all the same.
      value = items.ok() ? std::move(*items) : Json(items.status().message());
    }
    contents.metadata.emplace_back(std::string(entry.key), std::move(value));
  }
  for (const formats::GgufTensor& tensor : file.tensors()) {
    contents.tensors.push_back({std::string(tensor.name), tensor.view, tensor.offset, ""});
  }
  return contents;
}

void add_shard(const formats::SafetensorsFile& file, bool sharded, Contents& contents) {
  for (const auto& [key, value] : file.metadata()) contents.metadata.emplace_back(key, value);
  for (const formats::SafetensorsTensor& tensor : file.tensors()) {
    contents.tensors.push_back(
        {tensor.name, tensor.view, tensor.offset, sharded ? file.path() : ""});
  }
}

Result<Contents> inspect_safetensors(const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(auto file, formats::SafetensorsFile::open(path));
  Contents contents{path, "safetensors", file.file_bytes(), {}, {}};
  add_shard(file, false, contents);
  return contents;
}

Result<Contents> inspect_folder(const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(auto model, formats::SafetensorsModel::open(path));
  Contents contents{path, "safetensors", model.file_bytes(), {}, {}};
  for (const formats::SafetensorsFile& shard : model.shards()) {
    add_shard(shard, model.shards().size() > 1, contents);
  }
  return contents;
}

// Shows one shard by itself, and shards that have no config.json.
Result<Contents> inspect(const std::string& path, bool full) {
  if (path.ends_with(".safetensors")) return inspect_safetensors(path);
  const auto model = formats::locate_model(path, "auto");
  if (model.ok() && model->is_gguf) return inspect_gguf(model->file, full);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return inspect_folder(path);
  return model.status();
}

Json to_json(const Contents& contents) {
  Json tensors{Json::Array{}};
  int64_t parameters = 0, bytes = 0;
  for (const TensorRow& row : contents.tensors) {
    Json shape{Json::Array{}};
    for (int i = 0; i < row.view.shape.rank; ++i) shape.push(row.view.shape[i]);
    Json tensor;
    tensor.set("name", row.name);
    tensor.set("dtype", tensor::dtype_name(row.view.dtype));
    tensor.set("shape", std::move(shape));
    tensor.set("bytes", row.view.bytes());
    tensor.set("offset", static_cast<int64_t>(row.offset));
    if (!row.file.empty()) tensor.set("file", row.file);
    tensors.push(std::move(tensor));
    parameters += row.view.shape.elems();
    bytes += row.view.bytes();
  }
  Json json;
  json.set("path", contents.path);
  json.set("format", contents.format);
  json.set("file_bytes", static_cast<int64_t>(contents.file_bytes));
  json.set("tensor_bytes", bytes);
  json.set("parameters", parameters);
  json.set("metadata", contents.metadata);
  json.set("tensors", std::move(tensors));
  return json;
}

std::string human_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
  return text;
}

// One line of metadata: long strings are cut unless `full`; arrays show their length and first
// items.
std::string value_text(const Json& value, bool full) {
  if (value.is_string()) {
    std::string text = Json(value.as_string()).dump();
    if (full || text.size() <= kShownBytes) return text;
    size_t cut = kShownBytes;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    return base::cat(text.substr(0, cut), "... (", value.as_string().size(), " bytes)");
  }
  if (!value.is_object()) return value.dump();
  const Json& items = *value.find("items");
  std::string text = base::cat(value.find("count")->as_int(), " x ",
                               value.find("type")->as_string(), " ", items.dump());
  if (static_cast<int64_t>(items.as_array().size()) < value.find("count")->as_int())
    text.insert(text.size() - 1, ",...");
  return text;
}

void print_table(const Contents& contents, bool full) {
  std::map<std::string, std::pair<int64_t, int64_t>> by_dtype;  // tensors, bytes
  size_t name_width = 4, shape_width = 5;
  int64_t parameters = 0;
  for (const TensorRow& row : contents.tensors) {
    auto& [count, bytes] = by_dtype[tensor::dtype_name(row.view.dtype)];
    ++count;
    bytes += row.view.bytes();
    parameters += row.view.shape.elems();
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, row.view.shape.to_string().size());
  }
  std::printf("%s: %s, %s, %zu tensors, %.1f M parameters\n", contents.path.c_str(),
              contents.format.c_str(), human_bytes(double(contents.file_bytes)).c_str(),
              contents.tensors.size(), double(parameters) / 1e6);
  for (const auto& [dtype, total] : by_dtype) {
    std::printf("  %-10s %5lld tensors  %s\n", dtype.c_str(), static_cast<long long>(total.first),
                human_bytes(double(total.second)).c_str());
  }
  std::printf("\nmetadata\n");
  for (const auto& [key, value] : contents.metadata) {
    std::printf("  %s = %s\n", key.c_str(), value_text(value, full).c_str());
  }
  std::printf("\n%-*s  %-10s  %-*s  %12s  %12s\n", int(name_width), "name", "dtype",
              int(shape_width), "shape", "bytes", "offset");
  for (const TensorRow& row : contents.tensors) {
    std::printf("%-*s  %-10s  %-*s  %12lld  %12llu  %s\n", int(name_width), row.name.c_str(),
                tensor::dtype_name(row.view.dtype), int(shape_width),
                row.view.shape.to_string().c_str(), static_cast<long long>(row.view.bytes()),
                static_cast<unsigned long long>(row.offset), row.file.c_str());
  }
}

}  // namespace

int run_inspect(const Args& args) {
  if (!args.empty() && args[0] == "kv") return run_inspect_kv({args.begin() + 1, args.end()});
  bool full = false;
  Invocation call;
  const Usage usage{"inspect",
                    "[PATH]",
                    "Shows metadata and tensors of a GGUF file, a safetensors file or a model "
                    "folder\n(--model unless a PATH is given). `attune inspect kv` shows where KV "
                    "pages are.",
                    1,
                    true,
                    {"model", "log-level"}};
  if (auto code = read_command_line(
          usage, args, {{"full", &full, "attune inspect", "", "whole strings and arrays"}}, call))
    return *code;
  auto contents = inspect(call.settings.options().model, full);
  if (!contents.ok()) return report(contents.status(), call.json);
  if (call.json) {
    std::printf("%s\n", to_json(*contents).dump().c_str());
  } else {
    print_table(*contents, full);
  }
  return kExitOk;
}

}  // namespace attune::cli
