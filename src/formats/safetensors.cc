#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "formats/json.h"
#include "formats/quote.h"

namespace attune::formats {
namespace {

using tensor::DType;

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

constexpr struct {
  const char* name;
  DType dtype;
} kDTypes[] = {{"F32", DType::kF32},   {"F16", DType::kF16},        {"BF16", DType::kBF16},
               {"F64", DType::kF64},   {"I8", DType::kI8},          {"I16", DType::kI16},
               {"I32", DType::kI32},   {"I64", DType::kI64},        {"U8", DType::kU8},
               {"BOOL", DType::kBool}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2}};

std::string n(uint64_t v) {
  return std::to_string(v);
}

Result<DType> read_dtype(const Json& entry) {
  const Json* value = entry.find("dtype");
  if (value == nullptr || !value->is_string()) return data_loss("dtype is no string");
  std::string names;
  for (const auto& [name, dtype] : kDTypes) {
    if (value->as_string() == name) return dtype;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return unsupported("dtype " + quote(value->as_string()) +
                     " is not supported. Supported: " + names);
}

// The shape, and its elements counted without overflow.
Result<tensor::Shape> read_shape(const Json& entry, int64_t& elems) {
  const Json* value = entry.find("shape");
  if (value == nullptr || !value->is_array()) return data_loss("shape is no array");
  const Json::Array& dims = value->as_array();
  if (dims.size() > size_t(tensor::Shape::kMaxDims))
    return unsupported("shape has " + n(dims.size()) + " dimensions, at most 4 are supported");
  tensor::Shape shape;
  elems = 1;
  for (const Json& dim : dims) {
    if (!dim.is_int() || dim.as_int() < 0) return data_loss("shape holds no valid dimension");
    if (__builtin_mul_overflow(elems, dim.as_int(), &elems))
      return data_loss("the shape's product overflows");
    shape.dims[shape.rank++] = dim.as_int();
  }
  return shape;
}

// [begin, end) within the data section.
Result<std::pair<uint64_t, uint64_t>> read_offsets(const Json& entry) {
  const Json* value = entry.find("data_offsets");
  const auto is_offset = [](const Json& j) { return j.is_int() && j.as_int() >= 0; };
  if (value == nullptr || !value->is_array() || value->as_array().size() != 2 ||
      !is_offset(value->as_array()[0]) || !is_offset(value->as_array()[1]) ||
      value->as_array()[0].as_int() > value->as_array()[1].as_int())
    return data_loss("data_offsets is not [begin, end] with 0 <= begin <= end");
  return std::pair(uint64_t(value->as_array()[0].as_int()),
                   uint64_t(value->as_array()[1].as_int()));
}

// `offset` is left relative to the data section.
Result<SafetensorsTensor> read_tensor(const std::string& name, const Json& entry) {
  if (!entry.is_object()) return data_loss("its entry is no object");
  SafetensorsTensor tensor;
  tensor.name = name;
  int64_t elems = 0, bytes = 0;
  ATTUNE_ASSIGN_OR_RETURN(tensor.view.dtype, read_dtype(entry));
  ATTUNE_ASSIGN_OR_RETURN(tensor.view.shape, read_shape(entry, elems));
  ATTUNE_ASSIGN_OR_RETURN(const auto offsets, read_offsets(entry));
  const int64_t elem_bytes = tensor::dtype_info(tensor.view.dtype).block_bytes;
  if (__builtin_mul_overflow(elems, elem_bytes, &bytes))
    return data_loss("its size in bytes overflows");
  if (uint64_t(bytes) != offsets.second - offsets.first)
    return data_loss("data_offsets span " + n(offsets.second - offsets.first) + " bytes, " +
                     dtype_name(tensor.view.dtype) + " " + tensor.view.shape.to_string() +
                     " needs " + n(uint64_t(bytes)));
  tensor.offset = offsets.first;
  return tensor;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  ATTUNE_ASSIGN_OR_RETURN(SafetensorsFile result, parse(file.bytes(), path));
  result.file_ = std::move(file);
  return result;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  if (Status status = file.read(); !status.ok()) return status.with_context(file.name_);
  return file;
}

Status SafetensorsFile::read() {
  if (bytes_.size() < kLengthBytes)
    return data_loss("header length at byte 0: the file has only " + n(bytes_.size()) + " bytes");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes_.size() - kLengthBytes)
    return data_loss("header length at byte 0 is " + n(header_bytes) + ", the file has " +
                     n(bytes_.size()) + " bytes and at most " + n(kMaxHeaderBytes) +
                     " are allowed: truncated, or not a safetensors file");
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                              size_t(header_bytes));
  Result<Json> header = parse_json(text);
  if (!header.ok()) return data_loss("header at byte 8: " + header.status().message());
  if (!header->is_object()) return data_loss("header at byte 8: not a JSON object");
  for (const auto& [name, entry] : header->as_object()) {
    if (name == "__metadata__") {
      ATTUNE_RETURN_IF_ERROR(read_metadata(entry));
      continue;
    }
    Result<SafetensorsTensor> tensor = read_tensor(name, entry);
    if (!tensor.ok()) return tensor.status().with_context("tensor " + quote(name));
    tensors_.push_back(std::move(*tensor));
  }
  return place_tensors(kLengthBytes + header_bytes);
}

Status SafetensorsFile::read_metadata(const Json& object) {
  if (!object.is_object()) return data_loss("__metadata__ is no object");
  for (const auto& [key, value] : object.as_object()) {
    if (!value.is_string()) return data_loss("__metadata__ " + quote(key) + " is no string");
    metadata_.emplace(key, value.as_string());
  }
  return {};
}

// The data must be tiled by the tensors, without gap, overlap or rest.
Status SafetensorsFile::place_tensors(uint64_t start) {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.view.bytes()) < std::pair(b.offset, b.view.bytes());
  });
  const uint64_t section = bytes_.size() - start;
  uint64_t next = 0;
  for (SafetensorsTensor& tensor : tensors_) {
    const std::string name = "tensor " + quote(tensor.name);
    if (tensor.offset != next)
      return data_loss(name + ": data_offsets begin at " + n(tensor.offset) + " where " + n(next) +
                       " is due: " + (tensor.offset < next ? "an overlap" : "a gap"));
    next += uint64_t(tensor.view.bytes());  // both below 2^63
    tensor.offset += start;
    if (next > section) continue;  // told below, with what is missing in all
    const uint64_t elem_bytes = uint64_t(tensor::dtype_info(tensor.view.dtype).block_bytes);
    if (tensor.offset % elem_bytes != 0)
      return unsupported(name + ": its data at byte " + n(tensor.offset) +
                         " is not aligned; save the file again with safetensors 0.3 or later");
    tensor.view.data = bytes_.data() + tensor.offset;
  }
  if (next > section)
    return data_loss("truncated: the tensors need " + n(start + next) + " bytes, the file has " +
                     n(bytes_.size()) + ", " + n(next - section) + " are missing");
  if (next < section)
    return data_loss(n(section - next) + " bytes at byte " + n(start + next) +
                     " belong to no tensor");
  return {};
}

namespace {

// The shards that an index names, each a plain file name, and what it says of each tensor.
Result<std::set<std::string>> read_index(const std::string& path,
                                         std::vector<std::pair<std::string, std::string>>& map) {
  ATTUNE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  Result<Json> index = parse_json(text);
  if (!index.ok()) return data_loss(path + ": " + index.status().message());
  const Json* weights = index->find("weight_map");
  if (weights == nullptr || !weights->is_object() || weights->as_object().empty())
    return data_loss(path + ": weight_map is no object with entries");
  std::set<std::string> shards;
  for (const auto& [name, shard] : weights->as_object()) {
    if (!shard.is_string() || shard.as_string().empty() ||
        shard.as_string().find('/') != std::string::npos ||
        shard.as_string().find('\0') != std::string::npos || shard.as_string() == "..")
      return data_loss(path + ": weight_map " + quote(name) + " is no plain file name");
    shards.insert(shard.as_string());
    map.emplace_back(name, shard.as_string());
  }
  return shards;
}

// The one *.safetensors of a folder.
Result<std::string> find_single(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") found.push_back(it->path().string());
  if (error) return io_error(folder + ": " + error.message());
  if (found.size() == 1) return found[0];
  return not_found(folder + ": has no model.safetensors, no model.safetensors.index.json and " +
                   n(found.size()) + " other *.safetensors files (one would do)");
}

}  // namespace

Result<SafetensorsModel> SafetensorsModel::open(const std::string& folder) {
  namespace fs = std::filesystem;
  SafetensorsModel model;
  std::error_code error;
  const std::string index = (fs::path(folder) / "model.safetensors.index.json").string();
  const std::string whole = (fs::path(folder) / "model.safetensors").string();
  std::vector<std::pair<std::string, std::string>> map;
  if (fs::exists(index, error)) {
    ATTUNE_ASSIGN_OR_RETURN(const std::set<std::string> names, read_index(index, map));
    for (const std::string& name : names) {
      ATTUNE_ASSIGN_OR_RETURN(SafetensorsFile shard,
                              SafetensorsFile::open((fs::path(folder) / name).string()));
      model.shards_.push_back(std::move(shard));
    }
  } else {
    std::string path = whole;
    if (!fs::exists(whole, error)) {
      ATTUNE_ASSIGN_OR_RETURN(path, find_single(folder));
    }
    ATTUNE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
    model.shards_.push_back(std::move(file));
  }
  ATTUNE_RETURN_IF_ERROR(model.index_tensors());
  for (const auto& [name, shard] : map)
    if (model.find(name) == nullptr)
      return data_loss(index + ": tensor " + quote(name) + " is not in " + quote(shard));
  return model;
}

Status SafetensorsModel::index_tensors() {
  for (const SafetensorsFile& shard : shards_)
    for (const SafetensorsTensor& tensor : shard.tensors())
      if (!tensors_.emplace(tensor.name, tensor.view).second)
        return data_loss(shard.path() + ": tensor " + quote(tensor.name) +
                         " is also in another shard");
  return {};
}

const tensor::TensorView* SafetensorsModel::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t SafetensorsModel::file_bytes() const {
  uint64_t sum = 0;
  for (const SafetensorsFile& shard : shards_) sum += shard.file_bytes();
  return sum;
}

}  // namespace attune::formats
