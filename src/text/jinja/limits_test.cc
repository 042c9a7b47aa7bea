// What hostile templates and requests try: each ends as a Status, soon and within its memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/chat_template.h"

namespace attune::text {
namespace {

using formats::Json;
using testing::HasSubstr;

ChatRequest hello() {
  ChatRequest out;
  out.messages = Json::Array{Json::Object{{"role", "user"}, {"content", "hello"}}};
  return out;
}

constexpr RenderLimits kSmall{
    .max_steps = 500'000, .max_output_bytes = 1u << 20, .max_memory_bytes = 32u << 20};

Status outcome(const std::string& source, const ChatRequest& request = hello()) {
  Result<ChatTemplate> compiled = ChatTemplate::compile(source, {}, kSmall);
  if (!compiled.ok()) return compiled.status();
  return compiled->render(request).status();
}

std::string repeated(const std::string& what, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += what;
  return out;
}

TEST(JinjaLimits, EndlessWorkIsStopped) {
  const std::string hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set l = [1] %}{% for x in l %}{{ l.append(x) }}{% endfor %}",
      "{% macro m() %}{% for x in range(9) %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s * 9 %}{% endfor "
      "%}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s|replace('x', "
      "'xx') %}{% endfor %}",
      "{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set ns.s = ns.s.join(ns.s|list) "
      "%}{% endfor %}",
      "{{ 'x' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ ('x' * 1000000) * 1000000 }}",
      "{{ 'a'.ljust(99999999999) }}",
      "{{ 'a'.center(9999999999) }}",
      "{{ 'a'.zfill(9999999999) }}",
      "{{ '%2000000000d' % 1 }}",
      "{{ '{:2000000000}'.format(1) }}",
      "{{ '%.100000f' % 1.0 }}",
      "{{ 'a'|indent(9999999999) }}",
      "{{ [1]|batch(9999999999, 0)|list }}",
      "{{ range(9999999999)|list }}",
      "{{ 'x'|center(9999999999) }}",
      "{{ [1]|slice(9999999999)|list }}",
      "{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
      "{% for i in range(9999) %}{% set x %}{{ 'x' * 1000 }}{% endset %}{% endfor %}",
  };
  for (const std::string& source : hostile) {
    const std::clock_t begin =
        std::clock();  // of the processor: other work on the machine does not count
    const Status status = outcome(source);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << source << "\n" << status.to_string();
    EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC) << source;
  }
}

// Values of a few lines that print, compare or hash as gigabytes.
TEST(JinjaLimits, SharedAndCyclicValuesAreStopped) {
  const std::string grow =
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
      "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  const std::string cycle = "{% set l = [] %}{{ l.append(l) }}{% set m = [] %}{{ m.append(m) }}";
  const std::string deep =
      "{% set ns = namespace(a=[]) %}{% for i in range(50000) %}{% set ns.a = [ns.a] %}{% endfor "
      "%}";
  for (const std::string use :
       {"{{ %s }}", "{{ %s|tojson }}", "{{ %s == %t }}", "{{ %s < %t }}", "{{ %s in [%t] }}"}) {
    for (const auto& [setup, s, t] :
         {std::tuple{grow, "ns.a", "ns.b"}, {cycle, "l", "m"}, {deep, "ns.a", "[ns.a]"}}) {
      std::string source = use;
      for (const auto& [mark, name] : {std::pair{"%s", s}, {"%t", t}}) {
        if (const size_t at = source.find(mark); at != std::string::npos)
          source.replace(at, 2, name);
      }
      const Status status = outcome(setup + source);
      EXPECT_EQ(status.code(), Code::kResourceExhausted) << source << "\n" << status.to_string();
    }
  }
}

TEST(JinjaLimits, DeepSourceIsRefusedOnParsing) {
  const std::string deep[] = {
      "{{ " + repeated("(", 20000) + "1" + repeated(")", 20000) + " }}",
      "{{ " + repeated("[", 20000) + repeated("]", 20000) + " }}",
      "{{ " + repeated("-", 20000) + "1 }}",
      "{{ " + repeated("not ", 20000) + "1 }}",
      "{{ 1" + repeated(" + 1", 20000) + " }}",
      "{{ 1" + repeated(" ~ (1", 20000) + repeated(")", 20000) + " }}",
      "{{ a" + repeated(".a", 20000) + " }}",
      "{{ a" + repeated("()", 20000) + " }}",
      "{{ a" + repeated("|trim", 20000) + " }}",
      "{{ a" + repeated(" if a else a", 20000) + " }}",
      "{{ a" + repeated("[a", 20000) + repeated("]", 20000) + " }}",
      repeated("{% if a %}", 20000) + repeated("{% endif %}", 20000),
      repeated("{% for a in b %}", 20000) + repeated("{% endfor %}", 20000),
      "{% for " + repeated("(", 20000) + "a" + repeated(")", 20000) + " in b %}{% endfor %}",
  };
  for (const std::string& source : deep) {
    const Status status = outcome(source);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << source.substr(0, 40) << "\n"
                                                       << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("line 1")) << source.substr(0, 40);
  }
}

TEST(JinjaLimits, LongFlatTemplatesAreFine) {
  EXPECT_TRUE(outcome("{% if a %}" + repeated("{% elif b %}x", 5000) + "{% endif %}").ok());
  EXPECT_TRUE(outcome(repeated("{{ 1 }}", 5000)).ok());
  EXPECT_TRUE(outcome("{{ 1" + repeated(" + 1", 300) + " }}").ok());
}

// Filters that call filters, each level with a copy of the arguments.
TEST(JinjaLimits, NamesAsArgumentsDoNotRecurseWithoutEnd) {
  EXPECT_EQ(outcome("{{ 'a'|map(*(['map'] * 50000))|list }}").code(), Code::kResourceExhausted);
  EXPECT_EQ(outcome("{% set a = ['map'] * 990 %}{{ 'a'|map(*a)|list }}").code(),
            Code::kResourceExhausted);
}

TEST(JinjaLimits, RequestDepthIsLimited) {
  ChatRequest request = hello();
  Json deep = Json::Array{};
  for (int i = 0; i < 1000; ++i) deep = Json::Array{std::move(deep)};
  request.template_args = {{"deep", deep}};
  EXPECT_EQ(outcome("{{ deep }}", request).code(), Code::kResourceExhausted);
  EXPECT_TRUE(outcome("{{ other }}", request).ok())
      << "what the template never names costs nothing";
}

TEST(JinjaLimits, IntegersDoNotWrap) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}", "{{ 2 ** 64 }}",
        "{{ 9223372036854775807 * 2 }}", "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -(-9223372036854775807 - 1) }}", "{{ (-9223372036854775807 - 1)|abs }}",
        "{{ 99999999999999999999 }}"}) {
    EXPECT_EQ(outcome(source).code(), Code::kInvalidArgument) << source;
  }
  EXPECT_TRUE(outcome("{{ (-9223372036854775807 - 1) % -1 }}{{ 'abc'[::9223372036854775807] }}"
                      "{{ 'abc'[-9223372036854775807:] }}{{ "
                      "[1][-9223372036854775807:9223372036854775807:-9223372036854775807] }}")
                  .ok());
}

TEST(JinjaErrors, SayWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ x.y }}", "line 2: 'x' is undefined"},
      {"a\n\n{{ messages + 1 }}", "line 3: unsupported operand type(s) for +: 'list' and 'int'"},
      {"{% if 1 %}\n{{ ", "line 2: "},
      {"{% for x in l %}\n{% endif %}", "line 2: Encountered unknown tag 'endif'"},
      {"{{ 1|nope }}", "line 1: No filter named 'nope'"},
      {"\n{% include 'x' %}", "line 2: 'include' is not supported"},
      {"{{ messages[0].role.nope() }}", "'str object' has no attribute 'nope'"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_THAT(outcome(source).message(), HasSubstr(message)) << source;
  }
  EXPECT_EQ(outcome("{% extends 'x' %}").code(), Code::kUnsupported);
}

}  // namespace
}  // namespace attune::text
