#include "model/chat_templates.h"

#include <gtest/gtest.h>

#include <string>

#include "base/test_folder.h"

namespace quantspec {
namespace {

TEST(ChatTemplatesOfAFolder, TheFirstFileThatHasOneCounts) {
  TestFolder folder;
  EXPECT_TRUE(folder_chat_templates(folder.path()).empty());
  folder.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(folder_chat_templates(folder.path()).at(0).source, "config");
  folder.write("chat_template.json", R"({"chat_template": [
    {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "json"}]})");
  EXPECT_EQ(folder_chat_templates(folder.path()).at(1).source, "json");
  folder.write("chat_template.jinja", "jinja");
  EXPECT_EQ(folder_chat_templates(folder.path()).at(0).source, "jinja");
  EXPECT_EQ(folder_chat_templates(folder.path()).at(0).name, "default");
}

TEST(ChatTemplatesOfAFolder, AFileMayHaveNone) {
  TestFolder folder;
  folder.write("chat_template.json", "[]");
  folder.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_TRUE(folder_chat_templates(folder.path()).empty());
}

TEST(ChatTemplatesOfAFolder, EmptyTextsAreNone) {
  TestFolder folder;
  folder.write("chat_template.jinja", "");
  folder.write("chat_template.json", R"({"chat_template": ""})");
  EXPECT_TRUE(folder_chat_templates(folder.path()).empty());
  folder.write("tokenizer_config.json", R"({"chat_template": [
    {"name": "tool_use", "template": ""}, {"name": "default", "template": "config"}]})");
  const auto templates = folder_chat_templates(folder.path());
  ASSERT_EQ(templates.size(), 1u);
  EXPECT_EQ(templates[0].name, "default");
  EXPECT_EQ(templates[0].source, "config");
}

// A model that cannot talk still continues texts. Nor does it talk by a template of another file.
TEST(ChatTemplatesOfAFolder, WhatIsNoTemplateIsWarnedOf) {
  TestFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "config"})");
  for (const std::string content : {R"({"chat_template": 1})", R"({"chat_template": ["x"]})",
                                    R"({"chat_template": {"a": 1}})", R"({"chat_template")"}) {
    folder.write("chat_template.json", content);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(folder_chat_templates(folder.path()).empty()) << content;
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("warning"), std::string::npos) << log;
    EXPECT_NE(log.find("chat_template.json"), std::string::npos) << log;
  }
  folder.write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(folder_chat_templates(folder.path()).empty());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("chat_template.jinja"), std::string::npos) << log;
}

}  // namespace
}  // namespace quantspec
