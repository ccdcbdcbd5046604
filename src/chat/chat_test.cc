#include "chat/chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/expect_error.h"
#include "base/expect_linear_time.h"

namespace quantspec {
namespace {

constexpr auto kBroken = ErrorKind::kCorruptFile;
constexpr auto kUnsupported = ErrorKind::kUnsupportedModel;
constexpr auto kRefused = ErrorKind::kInvalidRequest;

std::string rendered(std::string_view source,
                     const OrderedJson& variables = OrderedJson::object()) {
  ChatInput input;
  input.variables = &variables;
  return ChatTemplate(source).render(input);
}

void expect_parse_error(ErrorKind kind, const std::vector<std::string>& mentions,
                        const std::string& source) {
  expect_error(kind, mentions, [&] { (void)ChatTemplate(source); });
}

void expect_render_error(ErrorKind kind, const std::vector<std::string>& mentions,
                         const std::string& source,
                         const OrderedJson& variables = OrderedJson::object()) {
  const ChatTemplate chat(source);
  ChatInput input;
  input.variables = &variables;
  expect_error(kind, mentions, [&] { (void)chat.render(input); });
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// ---- What a template sees ----

TEST(Chat, RendersAConversation) {
  const auto messages = OrderedJson::parse(
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?", "zeta": 1, "alpha": 2}])");
  const auto tools = OrderedJson::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const auto more = OrderedJson::parse(R"({"enable_thinking": false, "eos_token": "<end>"})");
  const ChatTemplate chat(
      "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{{ eos_token }}{% endfor %}"
      "{{ tools[0].function.name }}{{ enable_thinking }}{{ documents }}"
      "{{ '>' if add_generation_prompt }}");
  ChatInput input;
  input.messages = &messages;
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  const std::string first = R"({"role": "user", "content": "Hi"})";
  const std::string second =
      R"({"role": "assistant", "content": "Yes?", "zeta": 1, "alpha": 2})";  // in that order
  EXPECT_EQ(ChatTemplate("{{ tools }}{{ nope is defined }}{{ bos_token }}").render(input),
            "NoneFalse<s>");
  input.tools = &tools;
  input.variables = &more;
  EXPECT_EQ(chat.render(input), "<s>" + first + "<end>" + second + "<end>fFalseNone>");
  input.add_generation_prompt = false;
  EXPECT_EQ(chat.render(input), "<s>" + first + "<end>" + second + "<end>fFalseNone");
}

TEST(Chat, ShowsTheTimeThatItIsGiven) {
  ChatInput input;
  input.now = std::tm{};
  input.now->tm_year = 130;
  input.now->tm_mday = 1;
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%d %b %Y') }}").render(input), "01 Jan 2030");
  input.now.reset();
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%Y') | length }}").render(input), "4");
}

TEST(Chat, RendersInManyThreadsAtOnce) {
  const ChatTemplate chat("{% for i in range(200) %}{{ loop.index ~ name }}{% endfor %}");
  const OrderedJson variables = {{"name", "x"}};
  ChatInput input;
  input.variables = &variables;
  const std::string expected = chat.render(input);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, copy = chat] {
      for (int n = 0; n < 20; ++n) EXPECT_EQ(copy.render(input), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Errors ----

TEST(ChatErrors, NameTheLineOfTheTemplate) {
  expect_parse_error(kBroken, {"chat template, line 3", "expected"}, "a\nb\n{{ 1 2 }}");
  expect_parse_error(kBroken, {"line 1", "endif"}, "{% if 1 %}");
  expect_parse_error(kBroken, {"UTF-8", "byte 1"}, "a\xFF");
  expect_parse_error(kUnsupported, {"line 2", "include", "supported are"}, "\n{% include 'x' %}");
  expect_render_error(kUnsupported, {"line 2", "filter", "nope"}, "\n{{ 1 | nope }}");
  expect_render_error(kUnsupported, {"str.translate()"}, "{{ 'a'.translate({}) }}");
  expect_render_error(kRefused, {"line 2", "'x' is undefined"}, "\n{{ x.y }}");
  expect_render_error(kRefused, {"Roles must alternate"},
                      "{{ raise_exception('Roles must alternate') }}");
  expect_render_error(kRefused, {"line 4"},
                      "{% macro f(x) %}\n\n\n{{ x.y }}{% endmacro %}{{ f() }}");
  expect_render_error(kRefused, {"no\\nlines"}, "{{ raise_exception('no\nlines') }}");
}

TEST(ChatErrors, RefuseWhatWouldChangeTheRequest) {
  const OrderedJson variables = {{"list", {1, 2}}, {"dict", {{"a", 1}}}};
  for (const char* call : {"list.append(3)", "list.pop()", "list.sort()", "dict.update({})",
                           "dict.pop('a')", "dict.setdefault('b', 1)"}) {
    expect_render_error(kUnsupported, {"changes it"}, std::string("{{ ") + call + " }}", variables);
  }
}

TEST(ChatErrors, SayThatIntegersHave64Bits) {
  expect_parse_error(kUnsupported, {"64 bits"}, "{{ 9223372036854775808 }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ 9223372036854775807 + 1 }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ 2 ** 63 }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ -(-9223372036854775807 - 1) }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ (-9223372036854775807 - 1) // -1 }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ 1e30 | int }}");
  expect_render_error(kRefused, {"64 bits"}, "{{ x }}", {{"x", 18446744073709551615u}});
}

TEST(ChatErrors, SayWhereNoLoopIsLeft) {
  expect_parse_error(kBroken, {"break outside of a loop"},
                     "{% for x in y %}{% else %}{% break %}{% endfor %}");
  expect_parse_error(kBroken, {"continue outside of a loop"},
                     "{% for x in y %}{% for z in x recursive %}{% else %}{% continue %}{% endfor "
                     "%}{% endfor %}");
}

// ---- Limits ----

TEST(ChatLimits, NestingInTheSource) {
  expect_parse_error(kUnsupported, {"64 levels"},
                     "{{ " + repeated("(", 100'000) + repeated(")", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"},
                     "{{ " + repeated("[", 100'000) + repeated("]", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"},
                     "{{ " + repeated("{1:", 100'000) + repeated("}", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ " + repeated("- ", 100'000) + "1 }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ " + repeated("not ", 100'000) + "1 }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ a" + repeated(".b", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ a" + repeated("|e", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ a" + repeated("()", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"}, "{{ a" + repeated(" if b", 100'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"},
                     "{{ a" + repeated(" if b else c", 50'000) + " }}");
  expect_parse_error(kUnsupported, {"64 levels"}, repeated("{% if 1 %}", 50'000));
  expect_parse_error(kUnsupported, {"64 levels"}, repeated("{% macro f() %}", 50'000));
  expect_parse_error(kUnsupported, {"1048576"}, std::string((1 << 20) + 1, 'x'));
}

TEST(ChatLimits, LongIsNotNested) {
  EXPECT_EQ(rendered("{{ 0" + repeated(" + 1", 1000) + " }}"), "1000");
  EXPECT_EQ(rendered("{{ 'a'" + repeated(" ~ 'b'", 1000) + " }}"), "a" + repeated("b", 1000));
  EXPECT_EQ(rendered("{{ 0" + repeated(" or 0", 1000) + " or 7 }}"), "7");
  EXPECT_EQ(rendered("{% if 0 %}" + repeated("{% elif 0 %}", 1000) + "{% else %}x{% endif %}"),
            "x");
}

TEST(ChatLimits, StepsOfARendering) {
  expect_render_error(
      kRefused, {"steps"},
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}");
  expect_render_error(kRefused, {"steps"},
                      "{% set s = 'x' * 4000000 %}{% for i in range(1000) %}{% if s in s ~ i %}{% "
                      "endif %}{% endfor %}");
  expect_render_error(kRefused, {"steps"}, "{{ [0] * 1000000 }}");
  expect_render_error(kRefused, {"steps"},
                      "{% set t = ('x',) * 300000 %}{% for i in range(1000) %}{{ "
                      "'a'.startswith(t) }}{% endfor %}");
  expect_render_error(kRefused, {"steps"},
                      "{% set s = 'x' * 2000000 %}{% set t = (s ~ 'y',) * 100 %}{% for i in "
                      "range(100) %}{{ s.endswith(t) }}{% endfor %}");
  expect_render_error(kRefused, {"steps"},
                      "{% set t = [0] * 60000 %}{{ (['a'] * 50000) | map('first', *t) | list | "
                      "length }}");
  expect_render_error(kRefused, {"range"}, "{{ range(100001) }}");
  expect_render_error(kRefused, {"range"},
                      "{{ range(-9223372036854775807, 9223372036854775807) }}");
}

TEST(ChatLimits, TextsOfARendering) {
  expect_render_error(kRefused, {"4194304"}, "{{ 'a' * 1000000000 }}");
  expect_render_error(kRefused, {"4194304"},
                      "{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s "
                      "~ ns.s %}{% endfor %}");
  expect_render_error(kRefused, {"4194304"}, "{% set s = 'x' * 3000 %}{{ s.replace('', s) }}");
  expect_render_error(kRefused, {"4194304"}, "{% set s = 'x' * 3000 %}{{ s | join(s) }}");
  expect_render_error(kRefused, {"4194304"},
                      "{% set s = 'x' * 100000 %}{% for i in range(100) %}{{ s }}{% endfor %}");
  expect_render_error(kRefused, {"indent"}, "{{ [1] | tojson(indent=1000000000) }}");
  expect_render_error(kUnsupported, {"width"}, "{{ '%1000000000d' % 1 }}");
  expect_render_error(kUnsupported, {"width"}, "{{ '{:1000000000}'.format(1) }}");
  expect_render_error(kRefused, {"width"}, "{{ 'a'.center(1000000000) }}");
  expect_render_error(kRefused, {"strftime_now"}, "{{ strftime_now('%1000000000d') }}");
}

TEST(ChatLimits, DepthOfARendering) {
  expect_render_error(kRefused, {"64 levels"}, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_render_error(kRefused, {"levels"},
                      "{% macro f() %}{{ " + repeated("(1 + ", 50) + "f()" + repeated(")", 50) +
                          " }}{% endmacro %}{{ f() }}");
  expect_render_error(kRefused, {"64 levels"},
                      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  for (const int names : {100, 10'000, 300'000}) {
    const std::string times = std::to_string(names);
    expect_render_error(kRefused, {names < 300'000 ? "64 levels" : "steps"},
                        "{{ 'a' | map(*(['map'] * " + times + ")) }}");
  }
  EXPECT_EQ(rendered("{{ ['a'] | map(*(['map'] * 20 + ['upper'])) | list | length }}"), "1");
  const std::string nested =
      "{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  expect_render_error(kRefused, {"64 levels"}, nested + "{{ ns.x }}");
  expect_render_error(kRefused, {"64 levels"}, nested + "{{ ns.x | tojson }}");
  expect_render_error(kRefused, {"64 levels"}, nested + "{{ ns.x == [ns.x][0] }}");
  expect_render_error(kRefused, {"unhashable"}, nested + "{{ {ns.x: 1} }}");
  EXPECT_EQ(rendered(nested + "{{ ns.x | length }}"), "1");
  OrderedJson deep = 1;
  for (int i = 0; i < 100; ++i) deep = OrderedJson::array({deep});
  expect_render_error(kRefused, {"64 levels"}, "{{ x }}", {{"x", deep}});
}

TEST(ChatLimits, RingsDoNoHarm) {
  const std::string ring =
      "{% set ns = namespace() %}{% set ns.x = [ns] %}{% set ns.y = {'n': ns.x} %}";
  EXPECT_EQ(rendered(ring + "{{ ns.x == ns.x }}{{ ns.x[0].x[0].y.n | length }}"), "True1");
  expect_render_error(kUnsupported, {"Namespace"}, ring + "{{ ns.x }}");
  expect_render_error(kRefused, {"Namespace"}, ring + "{{ ns.x | tojson }}");
}

TEST(ChatLimits, ParsingAndSearchingAreLinear) {
  std::string source;
  expect_linear_time(
      7'000,
      [&](std::size_t size) { source = repeated("{%- raw %}{% {{ x }}{% endraw -%}  \n", size); },
      [&](std::size_t) { (void)ChatTemplate(source); });
  OrderedJson variables;
  const ChatTemplate chat(
      "{{ a.split('x') | length }}{{ a.replace('aab', '') | length }}{{ a.rsplit('baa') | length "
      "}}");
  expect_linear_time(
      200'000,
      [&](std::size_t size) {
        variables = {{"a", std::string(size, 'a')}};
      },
      [&](std::size_t) {
        ChatInput input;
        input.variables = &variables;
        (void)chat.render(input);
      });
}

// ---- Choosing ----

TEST(ChatChoice, FindsTemplatesByName) {
  const auto list = named_chat_templates(OrderedJson::parse(
      R"([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])"));
  EXPECT_EQ(choose_chat_template(list, "", false).source, "a");
  EXPECT_EQ(choose_chat_template(list, "", true).source, "b");
  EXPECT_EQ(choose_chat_template(list, "default", true).source, "a");
  expect_error(kRefused, {"\"rag\"", "\"default\", \"tool_use\""},
               [&] { (void)choose_chat_template(list, "rag", false); });
  const auto one = named_chat_templates("text");
  EXPECT_EQ(choose_chat_template(one, "", true).source, "text");
  const auto by_name = named_chat_templates({{"rag", "r"}});
  EXPECT_EQ(choose_chat_template(by_name, "rag", true).source, "r");
  expect_error(kRefused, {"\"default\"", "\"rag\""},
               [&] { (void)choose_chat_template(by_name, "", false); });
  expect_error(kBroken, {"chat_template"}, [] { (void)named_chat_templates(5); });
  expect_error(kBroken, {"chat_template"}, [] { (void)named_chat_templates({{"a", 1}}); });
  expect_error(kBroken, {"chat_template"}, [] {
    (void)named_chat_templates(OrderedJson::array({"a", 1}));
  });
}

}  // namespace
}  // namespace quantspec
