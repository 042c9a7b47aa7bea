// A model family: how its files are to be read and what is special in its layers. Each lives in its
// own file under families/ and registers itself; nothing else in the engine knows a family's name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "formats/model_config.h"

namespace attune::model {

struct Family {
  formats::FamilyTraits traits;
  const char*
      description;  // for `attune explain` and the docs: "Llama 2 and 3, SmolLM2, TinyLlama"
};

// All families of this build, by name.
std::span<const Family> families();
// Their traits, as formats::open_model takes them.
std::vector<formats::FamilyTraits> family_traits();

// static const RegisterFamily registered{{...}}; in families/NAME.cc
struct RegisterFamily {
  explicit RegisterFamily(const Family& family);
};

}  // namespace attune::model
