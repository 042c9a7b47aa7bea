// Bytes to HttpRequest: Beast's parser behind four calls, so that only one unit compiles it.
#pragma once

#include <memory>
#include <string>

#include "server/http.h"

namespace attune::server {

// Reads one request. Not thread-safe.
class RequestParser {
 public:
  enum class State {
    kNeedMore,
    kHead,  // the head is complete and the body is not read yet; go on with read()
    kDone,
    kFailed,  // see status() and error()
  };

  RequestParser(size_t max_header_bytes, size_t max_body_bytes);
  ~RequestParser();

  // Takes what belongs to this request off the front of `in`. Reports kHead once.
  State read(std::string& in);

  bool started() const;  // any byte seen
  bool http11() const;
  bool keep_alive() const;
  bool has_body() const;  // from kHead on
  bool expects_continue() const;
  int status() const { return status_; }  // 400, 413, 431, 501
  const std::string& error() const { return error_; }

  // From kHead on without, from kDone on with its body. `arrival` is the caller's.
  HttpRequest& request() { return request_; }

 private:
  struct Impl;
  void fill_head();
  State fail(int status, std::string error);

  std::unique_ptr<Impl> impl_;
  HttpRequest request_;
  bool head_seen_ = false;
  int status_ = 0;
  std::string error_;
};

// "%41" to "A"; malformed escapes stay as they are.
std::string percent_decode(std::string_view text);

}  // namespace attune::server
