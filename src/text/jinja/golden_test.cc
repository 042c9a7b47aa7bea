// Equal to Python's jinja2, byte by byte: tests/golden/templates, written by
// tools/golden_templates.py.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "formats/json.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace attune::text {
namespace {

using formats::Json;

const std::string kFolder = std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/templates/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

Json read_json(const std::string& name) {
  Result<Json> parsed = formats::parse_json(read_file(kFolder + name));
  EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status().to_string();
  return parsed.ok() ? std::move(parsed).value() : Json();
}

// 2024-07-26 13:05:09, the clock that the golden cases were written with.
std::tm golden_time() {
  std::tm now{};
  now.tm_year = 124, now.tm_mon = 6, now.tm_mday = 26;
  now.tm_hour = 13, now.tm_min = 5, now.tm_sec = 9;
  now.tm_wday = 5, now.tm_yday = 207;
  return now;
}

Result<std::string> render(const std::string& source, const Json& variables) {
  Result<jinja::Template> parsed = jinja::parse(source);
  if (!parsed.ok()) return parsed.status();
  jinja::Meter meter(1'000'000, 64u << 20);
  jinja::Heap heap(meter);
  const jinja::Environment environment{golden_time()};
  jinja::Interpreter interpreter(*parsed, heap, environment);
  try {
    for (const auto& [name, value] : variables.as_object())
      interpreter.define(name, to_value(heap, value));
    return interpreter.render().bytes();
  } catch (const jinja::RenderError& e) {
    return Status(e.code, e.message);
  }
}

TEST(JinjaGolden, MicroCasesEqualPython) {
  const Json page = read_json("micro.json");
  const Json::Array& cases = page.find("cases")->as_array();
  ASSERT_GT(cases.size(), 700u);
  for (const Json& c : cases) {
    const std::string& source = c.find("template")->as_string();
    const Json& expected = *c.find("expected");
    const Result<std::string> got = render(source, *page.find("variables"));
    if (expected.is_object()) {
      EXPECT_FALSE(got.ok()) << source << "\n  gave: " << *got << "\n  Python: " << expected.dump();
    } else {
      ASSERT_TRUE(got.ok()) << source << "\n  " << got.status().to_string();
      EXPECT_EQ(*got, expected.as_string()) << source;
    }
  }
}

SpecialTokens special_tokens(const Json& page) {
  SpecialTokens out;
  for (const auto& [name, text] : page.find("special_tokens")->as_object())
    out.emplace_back(name, text.as_string());
  return out;
}

ChatRequest request_of(const Json& conversation) {
  ChatRequest out;
  out.now = golden_time();
  out.messages = *conversation.find("messages");
  if (const Json* tools = conversation.find("tools")) out.tools = *tools;
  if (const Json* args = conversation.find("template_args")) out.template_args = args->as_object();
  if (const Json* prompt = conversation.find("add_generation_prompt"))
    out.add_generation_prompt = prompt->as_bool();
  return out;
}

// Every conversation of every template: the same text, or refused by both.
TEST(BugI06, OfficialTemplatesRenderAsTheReference) {
  const Json page = read_json("conversations.json");
  int templates = 0, rendered = 0, refused = 0;
  for (const auto& [name, expected] : page.find("expected")->as_object()) {
    ++templates;
    Result<ChatTemplate> compiled =
        ChatTemplate::compile(read_file(kFolder + name + ".jinja"), special_tokens(page));
    ASSERT_TRUE(compiled.ok()) << name << ": " << compiled.status().to_string();
    for (const Json& conversation : page.find("conversations")->as_array()) {
      std::string which = conversation.find("name")->as_string();
      // A template that does not loop over content parts gets them joined (see chat_template.h).
      const Result<Prompt> got = compiled->render(request_of(conversation));
      if (which == "parts" && compiled->content_format() == ContentFormat::kString)
        which = "parts_joined";
      const Json& want = *expected.find(which);
      if (want.is_object()) {
        EXPECT_FALSE(got.ok()) << name << "/" << which << " should be refused: " << want.dump();
        ++refused;
      } else {
        ASSERT_TRUE(got.ok()) << name << "/" << which << ": " << got.status().to_string();
        EXPECT_EQ(got->text(), want.as_string()) << name << "/" << which;
        ++rendered;
      }
    }
  }
  EXPECT_GE(templates, 30);
  EXPECT_GE(rendered, 650);
  EXPECT_GE(refused, 30);
}

// What the template refuses itself keeps the template's words.
TEST(BugI06, RefusalsCarryTheTemplatesMessage) {
  const Json page = read_json("conversations.json");
  int compared = 0;
  for (const auto& [name, expected] : page.find("expected")->as_object()) {
    Result<ChatTemplate> compiled =
        ChatTemplate::compile(read_file(kFolder + name + ".jinja"), special_tokens(page));
    ASSERT_TRUE(compiled.ok());
    for (const Json& conversation : page.find("conversations")->as_array()) {
      const std::string& which = conversation.find("name")->as_string();
      const Json& want = *expected.find(which);
      const std::string prefix = "TemplateError: ";
      if (which == "parts" || !want.is_object() ||
          !want.find("error")->as_string().starts_with(prefix))
        continue;
      const Result<Prompt> got = compiled->render(request_of(conversation));
      ASSERT_FALSE(got.ok());
      EXPECT_EQ(got.status().message(), want.find("error")->as_string().substr(prefix.size()))
          << name << "/" << which;
      EXPECT_EQ(got.status().code(), Code::kInvalidArgument);
      ++compared;
    }
  }
  EXPECT_GE(compared, 10);
}

}  // namespace
}  // namespace attune::text
