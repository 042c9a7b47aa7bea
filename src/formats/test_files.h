// For tests: files to write and break.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attune::formats {

inline std::string golden(const std::string& name) {
  return std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/formats/" + name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder that is gone with its object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "attune_formats_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view data) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << data;
    return path_ + "/" + name;
  }
  void copy_from(const std::string& folder) const {
    std::filesystem::copy(folder, path_, std::filesystem::copy_options::recursive);
  }

 private:
  std::string path_;
};

// Bytes of a GGUF file, field by field, right or wrong.
class GgufBytes {
 public:
  GgufBytes(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    bytes = "GGUF";
    put(version).put(tensors).put(entries);
  }
  template <typename T>
  GgufBytes& put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& str(std::string_view s) {
    put(uint64_t(s.size()));
    bytes += s;
    return *this;
  }
  GgufBytes& key(std::string_view name, uint32_t type) { return str(name).put(type); }
  GgufBytes& u32(std::string_view name, uint32_t value) { return key(name, 4).put(value); }
  GgufBytes& text(std::string_view name, std::string_view value) { return key(name, 8).str(value); }
  // `ne` in the file's order, innermost first.
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                    uint64_t offset) {
    str(name).put(uint32_t(ne.size()));
    for (uint64_t dim : ne) put(dim);
    return put(type).put(offset);
  }
  GgufBytes& data(size_t count, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment + count);
    return *this;
  }
  std::span<const std::byte> span() const { return std::as_bytes(std::span(bytes)); }

  std::string bytes;
};

// A safetensors file of a header and zeros.
inline std::string safetensors_bytes(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  bytes.resize(bytes.size() + data_bytes);
  return bytes;
}

}  // namespace attune::formats
