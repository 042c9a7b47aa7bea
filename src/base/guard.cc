#include "base/guard.h"

#include <new>

namespace attune::base {

Status caught() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return internal_error("out of memory");
  } catch (const std::exception& e) {
    return internal_error(e.what());
  } catch (...) {
    return internal_error("an exception of unknown type");
  }
}

}  // namespace attune::base
