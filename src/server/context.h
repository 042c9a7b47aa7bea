// What the routes share. Belongs to the loop's thread.
#pragma once

#include <ctime>
#include <string>

#include "attune/options.h"
#include "server/completion.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/worker.h"

namespace attune::server {

enum class Stage : uint8_t { kLoading, kReady, kDraining };

struct Context {
  Options options;
  Stage stage = Stage::kLoading;
  Model model;              // from kReady on
  int32_t token_limit = 0;  // likewise
  Metrics metrics;
  std::time_t started = std::time(nullptr);
  std::string id_base;  // random, so that ids of two servers differ
  uint64_t next_id = 0;
  HttpServer* http = nullptr;

  Loop* loop = nullptr;
  EventQueue* events = nullptr;
  Worker* worker = nullptr;
  Worker* cache_worker = nullptr;  // for what may wait for storage that hangs

  std::string make_id(const char* prefix) { return prefix + id_base + std::to_string(next_id++); }
  // The name that /v1/models shows and answers carry when the request has none.
  std::string model_name() const {
    if (!options.served_model_name.empty() || !model.engine) return options.served_model_name;
    return model.engine->model().name;
  }
};

}  // namespace attune::server
