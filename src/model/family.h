// A model family: how its files are to be read and what is special in its layers. Each lives in its
// own file under families/, which defines
//   namespace attune::model { const Family& NAME_family(); }
// for its file's name; CMake lists the files in a generated table, so a new
// family is a new file and nothing else.
#pragma once

#include <span>
#include <vector>

#include "formats/model_config.h"

namespace attune::model {

struct Family {
  formats::FamilyTraits traits;
  const char* description;  // "Llama 2 and 3, SmolLM2"
};

// All families of this build, by name.
std::span<const Family* const> families();
// Their traits, as formats::open_model takes them.
std::vector<formats::FamilyTraits> family_traits();

}  // namespace attune::model
