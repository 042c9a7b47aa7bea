// open_model: finds out what a path is, and opens it.
#include <filesystem>
#include <map>

#include "formats/json.h"
#include "formats/mapped_file.h"
#include "formats/quote.h"
#include "formats/weight_source.h"

namespace attune::formats {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_with(const std::string& folder, std::string_view extension) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == extension) found.push_back(it->path().string());
  return found;
}

Result<ModelLocation> locate_folder(const std::string& path, std::string_view format) {
  std::error_code error;
  const std::string config = (fs::path(path) / "config.json").string();
  const bool has_config = fs::exists(config, error);
  const bool has_tensors = !files_with(path, ".safetensors").empty();
  const std::vector<std::string> ggufs = files_with(path, ".gguf");
  if (format == "dummy" && has_config) return ModelLocation{false, config, path};
  if (format != "gguf" && has_config && (has_tensors || ggufs.empty() || format == "safetensors"))
    return ModelLocation{false, config, path};
  if (format != "safetensors" && ggufs.size() == 1) return ModelLocation{true, ggufs[0], {}};
  return not_found(
      path + ": for load format " + std::string(format) +
      " a folder needs config.json with *.safetensors, or exactly one *.gguf; it has " +
      (has_config ? "config.json" : "no config.json") + ", " + (has_tensors ? "" : "no ") +
      "*.safetensors and " + std::to_string(ggufs.size()) + " *.gguf");
}

// "org/name", as a model is called on a hub, where no folder "org" is.
bool looks_like_hub_name(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  std::error_code error;
  return !parent.empty() && parent != "." && parent != "~" && parent == parent.filename() &&
         !path.ends_with("/") && !path.ends_with(".gguf") && !fs::exists(parent, error);
}

Status no_such_model(const std::string& path) {
  std::string message = path + ": no such model file or folder";
  if (looks_like_hub_name(path))
    message += "; nothing is downloaded from a hub: fetch the files (hf download " + path +
               " --local-dir FOLDER) and name the folder or the GGUF file in it";
  return not_found(message);
}

Result<Json> read_json(const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  Result<Json> json = parse_json({reinterpret_cast<const char*>(file.data()), file.size()});
  if (!json.ok()) return json.status().with_context(path);
  return json;
}

Result<ModelConfig> read_hf_config(const ModelLocation& location,
                                   std::span<const FamilyTraits> families) {
  ATTUNE_ASSIGN_OR_RETURN(const Json config, read_json(location.file));
  const std::string path = (fs::path(location.folder) / "generation_config.json").string();
  Result<Json> generation = read_json(path);
  if (!generation.ok() && generation.status().code() != Code::kNotFound) return generation.status();
  Result<ModelConfig> result =
      model_config_from_hf(config, generation.ok() ? &*generation : nullptr, families);
  if (!result.ok()) return result.status().with_context(location.folder);
  return result;
}

std::string folder_name(const std::string& folder) {
  std::error_code error;
  const fs::path full = fs::weakly_canonical(folder, error);
  const std::string name = (error ? fs::path(folder) : full).filename().string();
  return name.empty() ? "model" : name;
}

Status open_gguf(const ModelLocation& location, std::span<const FamilyTraits> families,
                 LoadedModel& model) {
  ATTUNE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(location.file));
  ATTUNE_ASSIGN_OR_RETURN(const int64_t parts, file.get_int_or("split.count", 1));
  if (parts > 1)
    return unsupported(location.file + ": one of " + std::to_string(parts) +
                       " parts of a split GGUF; merge them (llama-gguf-split --merge)");
  model.gguf = std::make_shared<const GgufFile>(std::move(file));
  ATTUNE_ASSIGN_OR_RETURN(model.config, model_config_from_gguf(*model.gguf, families));
  // Not general.name: converters fill it with what their training folders were called.
  model.name = fs::path(location.file).stem().string();
  return {};
}

// Elements that the model reads, and the type that most of their bytes have.
void summarize(std::span<const TensorSpec> specs, LoadedModel& model) {
  std::map<tensor::DType, int64_t> bytes;
  for (const TensorSpec& spec : specs) {
    if (spec.optional) continue;
    const auto view = model.weights->describe(spec.name);
    model.parameters += view->shape.elems();
    bytes[view->dtype] += view->bytes();
  }
  int64_t most = -1;
  for (const auto& [dtype, sum] : bytes) {
    if (sum <= most) continue;
    most = sum;
    model.weight_format = tensor::dtype_name(dtype);
  }
}

}  // namespace

Result<ModelLocation> locate_model(const std::string& path, std::string_view format) {
  if (format != "auto" && format != "gguf" && format != "safetensors" && format != "dummy")
    return invalid_argument("load format " + quote(format) +
                            "; supported: auto, gguf, safetensors, dummy");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return no_such_model(path);
  if (fs::is_directory(status)) return locate_folder(path, format);
  const fs::path file(path);
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  if (file.extension() == ".safetensors")
    return locate_folder(folder, format == "auto" ? "safetensors" : format);
  if (file.extension() == ".json") {
    if (format == "dummy") return ModelLocation{false, path, folder};
    return invalid_argument(path +
                            ": a config alone can be loaded only with load format dummy; "
                            "give the folder that holds it and the weights");
  }
  if (format == "safetensors")
    return invalid_argument(path + ": load format safetensors needs a folder");
  return ModelLocation{true, path, {}};
}

Result<LoadedModel> open_model(const std::string& path, std::string_view load_format, uint64_t seed,
                               std::span<const FamilyTraits> families) {
  ATTUNE_ASSIGN_OR_RETURN(const ModelLocation location, locate_model(path, load_format));
  LoadedModel model;
  model.path = path;
  model.folder = location.folder;
  if (location.is_gguf) {
    ATTUNE_RETURN_IF_ERROR(open_gguf(location, families, model));
  } else {
    ATTUNE_ASSIGN_OR_RETURN(model.config, read_hf_config(location, families));
    model.name = folder_name(location.folder);
  }
  const std::vector<TensorSpec> specs = expected_tensors(model.config);
  if (load_format == "dummy") {
    ATTUNE_ASSIGN_OR_RETURN(model.weights, dummy_weights(specs, model.config, seed));
  } else if (location.is_gguf) {
    model.weights = gguf_weights(model.gguf);
  } else {
    ATTUNE_ASSIGN_OR_RETURN(model.weights, safetensors_weights(location.folder));
  }
  if (Status status = check_weights(specs, *model.weights); !status.ok())
    return status.with_context(path);
  summarize(specs, model);
  return model;
}

}  // namespace attune::formats
