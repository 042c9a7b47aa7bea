#include "bench/http_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attune::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Feeds `reply` in two parts, cut at `cut`; the body, or the error.
std::string read_cut(std::string_view reply, size_t cut, bool close = false) {
  HttpReplyReader reader;
  std::string body;
  for (std::string_view part : {reply.substr(0, cut), reply.substr(cut)}) {
    if (Status status = reader.feed(part, body); !status.ok()) return status.message();
  }
  if (close) {
    if (Status status = reader.end(); !status.ok()) return status.message();
  }
  return reader.done() ? std::to_string(reader.status()) + " " + body : "not done: " + body;
}

std::string read_whole(std::string_view reply, bool close = false) {
  return read_cut(reply, reply.size(), close);
}

TEST(HttpReply, ReadsTheSameHoweverItIsCut) {
  const std::string_view chunked =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nX: y\r\n\r\n"
      "5;ext=1\r\nhello\r\nD\r\n chunk\r\n\r\nend\r\n0\r\nTrailer: 1\r\n\r\n";
  for (size_t cut = 0; cut <= chunked.size(); ++cut)
    ASSERT_EQ(read_cut(chunked, cut), "200 hello chunk\r\n\r\nend") << cut;
  const std::string_view sized = "HTTP/1.0 404 Not Found\nContent-Length:  4 \n\nbody";
  for (size_t cut = 0; cut <= sized.size(); ++cut) ASSERT_EQ(read_cut(sized, cut), "404 body");
}

TEST(HttpReply, BodiesWithoutSizeEndWithTheConnection) {
  EXPECT_EQ(read_whole("HTTP/1.1 200 OK\r\n\r\nall", true), "200 all");
  EXPECT_EQ(read_whole("HTTP/1.1 200 OK\r\n\r\nall"), "not done: all");
  EXPECT_EQ(read_whole("HTTP/1.1 204 No\r\n\r\n"), "204 ");
  EXPECT_EQ(read_whole("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "200 ");
}

TEST(HttpReply, TellsWhatIsBroken) {
  EXPECT_THAT(read_whole("", true), HasSubstr("without a reply"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nContent-", true),
              HasSubstr("inside its reply's head"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", true),
              HasSubstr("inside its reply's body"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", true),
              HasSubstr("inside its reply's body"));
  EXPECT_THAT(read_whole("SSH-2.0-OpenSSH\r\n"), HasSubstr("no HTTP/1.1 status line: \"SSH-2.0"));
  EXPECT_THAT(read_whole("HTTP/1.1 abc\r\n"), HasSubstr("no HTTP/1.1 status line"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n"), HasSubstr("content-length"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nnonsense\r\n"), HasSubstr("without a colon"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n"),
              HasSubstr("unknown transfer-encoding"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"), HasSubstr("not asked"));
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(read_whole(chunked + "xyz\r\n"), HasSubstr("bad chunk size: \"xyz\""));
  EXPECT_THAT(read_whole(chunked + "FFFFFFFFFFFFFFFFF\r\n"), HasSubstr("bad chunk size"));
  EXPECT_THAT(read_whole(chunked + "2\r\nabc\r\n"), HasSubstr("longer than its size"));
  EXPECT_THAT(read_whole("HTTP/1.1 200 OK\r\n" + std::string(1 << 17, 'x')),
              HasSubstr("endless head"));
}

std::vector<std::string> events_cut(std::string_view text, size_t cut) {
  SseReader reader;
  std::vector<std::string> events;
  reader.feed(text.substr(0, cut), events);
  reader.feed(text.substr(cut), events);
  return events;
}

TEST(Sse, ReadsTheSameHoweverItIsCut) {
  const std::string_view text =
      ": comment\r\n\r\ndata: one\n\nevent: x\ndata:two\r\ndata: lines\r\n\r\nid: 1\n\n"
      "data: three\r\rdata\n\ndata: never ended\n";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    ASSERT_THAT(events_cut(text, cut), ElementsAre("one", "two\nlines", "three", "")) << cut;
}

}  // namespace
}  // namespace attune::bench
