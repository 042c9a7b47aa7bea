// A non-owning, row-major view: pointer, type, shape. Rows may be padded (stride of dim 0 in
// elements).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace attune::tensor {

// The outermost dimension first, as in PyTorch: a weight of a linear layer is [out, in].
struct Shape {
  static constexpr int kMaxDims = 4;
  int32_t rank = 0;
  int64_t dims[kMaxDims] = {0, 0, 0, 0};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    ATTUNE_CHECK(list.size() <= kMaxDims);
    for (int64_t d : list) dims[rank++] = d;
  }
  int64_t operator[](int i) const { return dims[i]; }
  int64_t elems() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool operator==(const Shape&) const = default;
  std::string to_string() const {  // "[49152, 576]"
    std::string s = "[";
    for (int i = 0; i < rank; ++i) s += (i ? ", " : "") + std::to_string(dims[i]);
    return s + "]";
  }
};

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t bytes() const { return dtype_bytes(dtype, shape.elems()); }
};

}  // namespace attune::tensor
