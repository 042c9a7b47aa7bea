// The routes that are no generation: state, models, tokens, metrics.
#pragma once

#include <memory>

#include "server/context.h"

namespace attune::server {

using ExchangePtr = std::shared_ptr<Exchange>;

void health(Context& context, HttpRequest request, ExchangePtr exchange);
// Generates one token; 200 when it came within 20 s.
void health_generate(Context& context, HttpRequest request, ExchangePtr exchange);
void list_models(Context& context, HttpRequest request, ExchangePtr exchange);
void show_model(Context& context, HttpRequest request, ExchangePtr exchange);  // /v1/models/NAME
void model_info(Context& context, HttpRequest request, ExchangePtr exchange);
void server_info(Context& context, HttpRequest request, ExchangePtr exchange);
void show_version(Context& context, HttpRequest request, ExchangePtr exchange);
void flush_cache(Context& context, HttpRequest request, ExchangePtr exchange);
void clear_storage(Context& context, HttpRequest request, ExchangePtr exchange);
void show_metrics(Context& context, HttpRequest request, ExchangePtr exchange);
void chat_page(Context& context, HttpRequest request, ExchangePtr exchange);

void tokenize(Context& context, HttpRequest request, ExchangePtr exchange);
void detokenize(Context& context, HttpRequest request, ExchangePtr exchange);

}  // namespace attune::server
