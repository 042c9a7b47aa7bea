#include "server/http_parser.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

namespace attune::server {
namespace {

// The state after `pieces` arrived one after another, each once all before it was read.
RequestParser::State read_all(RequestParser& parser,
                              std::initializer_list<std::string_view> pieces) {
  auto state = RequestParser::State::kNeedMore;
  std::string in;
  for (const std::string_view piece : pieces) {
    in.append(piece);
    do state = parser.read(in);
    while (state == RequestParser::State::kHead);
  }
  return state;
}

// However the network cuts a request, it is the same request. Two cuts reach every state the parser
// can stop in and go on from; Beast 1.81 asserts on a last chunk that it sees twice in four bytes.
TEST(RequestParser, TakesARequestHoweverItIsCut) {
  for (const std::string_view request :
       {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;a=b\r\nde\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\nTrailer: "
        "x\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde"}) {
    for (size_t first = 0; first < request.size(); ++first) {
      for (size_t second = first; second < request.size(); ++second) {
        RequestParser parser(1024, 1024);
        ASSERT_EQ(read_all(parser, {request.substr(0, first), request.substr(first, second - first),
                                    request.substr(second)}),
                  RequestParser::State::kDone)
            << request << " cut at " << first << " and " << second << ": " << parser.error();
        ASSERT_EQ(parser.request().body, "abcde");
      }
    }
  }
  RequestParser parser(1024, 1024);
  EXPECT_EQ(
      read_all(parser, {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "\r", "\n"}),
      RequestParser::State::kDone);
}

// What can be no chunk is refused as soon as it is seen, however short.
TEST(RequestParser, RefusesAMalformedChunkAtOnce) {
  for (const char* chunk : {"zz\r\n", "1\r\nabcdef", "-1\r\n"}) {
    RequestParser parser(1024, 1024);
    EXPECT_EQ(read_all(parser, {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", chunk}),
              RequestParser::State::kFailed)
        << chunk;
    EXPECT_EQ(parser.status(), 400);
  }
}

}  // namespace
}  // namespace attune::server
