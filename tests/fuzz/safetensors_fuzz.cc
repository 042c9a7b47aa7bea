// Any bytes as a safetensors file: refused, or the tensors tile its data exactly.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "formats/safetensors.h"

using attune::formats::SafetensorsFile;
using attune::formats::SafetensorsTensor;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  const auto file = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "fuzz.safetensors");
  if (!file.ok()) return 0;
  const uint8_t* next = nullptr;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    const auto* p = static_cast<const uint8_t*>(tensor.view.data);
    if (p != bytes.data() + tensor.offset || (next != nullptr && p != next)) std::abort();
    next = p + tensor.view.bytes();
  }
  if (next != nullptr && next != bytes.data() + bytes.size()) std::abort();
  return 0;
}
