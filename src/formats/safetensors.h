// safetensors: one file, or the shards that model.safetensors.index.json names, as a tensor table
// over maps. Format: https://github.com/huggingface/safetensors (8-byte little-endian header
// length, JSON, data).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attune/status.h"
#include "formats/mapped_file.h"
#include "tensor/tensor_view.h"

namespace attune::formats {

class Json;

struct SafetensorsTensor {
  std::string name;
  tensor::TensorView view;
  uint64_t offset = 0;  // of the data in the file
};

// Thread-compatible; const methods are thread-safe. Movable; views stay valid.
class SafetensorsFile {
 public:
  // Errors: data_loss with the offset or tensor and field (header length, JSON, shape, offsets that
  // overlap, leave a gap or pass the end; a file shorter than its header says tells the bytes
  // missing), unsupported (dtype, more than 4 dimensions), and MappedFile's.
  static Result<SafetensorsFile> open(const std::string& path);
  // The same over borrowed bytes, which must outlive the result; `name` is for messages.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return name_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  const MappedFile& file() const { return file_; }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Status read();
  Status read_metadata(const Json& object);
  Status place_tensors(uint64_t start);

  std::string name_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// All safetensors of a model folder.
class SafetensorsModel {
 public:
  // `folder` holds model.safetensors, or model.safetensors.index.json and the shards it names, or
  // exactly one
  // *.safetensors. Errors: as above with the shard's name; not_found for a shard that is not there;
  // data_loss for a tensor that the index has and its shard has not, or that two shards have.
  static Result<SafetensorsModel> open(const std::string& folder);

  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  const tensor::TensorView* find(std::string_view name) const;  // null: absent
  uint64_t file_bytes() const;

 private:
  Status index_tensors();

  std::vector<SafetensorsFile> shards_;
  std::unordered_map<std::string_view, tensor::TensorView> tensors_;
};

}  // namespace attune::formats
