#include "datasets/datasets.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/expect_error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "datasets/documents.h"
#include "datasets/partial_encoding.h"

namespace quantspec {

namespace {

namespace fs = std::filesystem;

const std::string kData = QUANTSPEC_TESTDATA "/datasets";

const Tokenizer& tokenizer() {
  static const auto bundled = load_tokenizer(fs::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m");
  return *bundled;
}

std::string gzipped(const std::string& text) {
  const TestFolder folder;
  const std::string path = folder.path().string() + "/x.gz";
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return read_file(path);
}

void expect_corrupt(const std::string& spec, const std::vector<std::string>& mentions) {
  expect_error(ErrorKind::kCorruptFile, mentions, [&] { Dataset::load(spec); });
}

void expect_refused(const std::string& spec, const std::vector<std::string>& mentions) {
  expect_error(ErrorKind::kInvalidRequest, mentions, [&] { Dataset::load(spec); });
}

std::vector<TokenId> encoded(const std::string& text) { return tokenizer().encode(text, false); }

std::vector<TokenId> slice(const std::vector<TokenId>& tokens, std::size_t from, std::size_t n) {
  return {tokens.begin() + from, tokens.begin() + from + n};
}

// What follows BOS.
std::vector<TokenId> body(const Prompt& prompt) {
  return {prompt.tokens.begin() + 1, prompt.tokens.end()};
}

std::vector<Prompt> cut(const std::string& spec, const PromptOptions& options) {
  return Dataset::load(spec).prompts(tokenizer(), options);
}

void expect_framed(const std::vector<Prompt>& prompts, std::size_t length) {
  for (const Prompt& prompt : prompts) {
    EXPECT_EQ(prompt.tokens.size(), length) << prompt.name;
    EXPECT_EQ(prompt.tokens.front(), *tokenizer().bos()) << prompt.name;
    EXPECT_EQ(std::count(prompt.tokens.begin(), prompt.tokens.end(), *tokenizer().bos()), 1);
  }
}

}  // namespace

TEST(Datasets, UnknownKindListsTheKnown) {
  for (const auto& spec : {"x:" + kData, std::string("text"), std::string()}) {
    expect_refused(spec, {"dataset '" + spec + "'", "text, pg19, infinitebench, multilexsum",
                          "wikitext, c4, recall, tasks"});
  }
}

TEST(Datasets, MissingPathAndFolderWithoutFilesAreRefused) {
  expect_refused("text:/nowhere/at/all", {"dataset 'text:/nowhere/at/all'", "no file or folder"});
  expect_refused("text:", {"dataset 'text:'"});
  const TestFolder folder;
  folder.write("a.md", "not a text for us");
  expect_refused("text:" + folder.path().string(),
                 {"dataset 'text:" + folder.path().string(), ".txt"});
  expect_refused("c4:" + folder.path().string(), {"dataset 'c4:", ".json, .jsonl"});
  // Other tasks of the benchmark have the same schema but other questions.
  folder.write("passkey.jsonl", R"({"context": "x"})");
  expect_refused("infinitebench:" + folder.path().string(), {"longbook_sum_eng.jsonl"});
}

TEST(Datasets, MessagesBeginWithTheFlagThatWasTyped) {
  const auto load = [](const std::string& spec) {
    return Dataset::load(spec, Field{"calibration text"});
  };
  const TestFolder folder;
  for (const std::string& spec :
       {std::string("x"), std::string("text:/nowhere/at/all"), "text:" + folder.path().string()}) {
    expect_error(ErrorKind::kInvalidRequest, {"calibration text '" + spec + "': "},
                 [&] { load(spec); });
  }
  const Dataset books = load("text:" + kData + "/books");
  for (const PromptOptions& options : {PromptOptions{.length = 1}, PromptOptions{.length = 100000},
                                       PromptOptions{.length = 150, .count = 100}}) {
    expect_error(ErrorKind::kInvalidRequest, {"calibration text '" + books.spec() + "': "},
                 [&] { books.prompts(tokenizer(), options); });
  }
}

TEST(Datasets, BooksOfAFolderComeByNameWithoutFrontMatter) {
  const Dataset dataset = Dataset::load("text:" + kData + "/books");
  ASSERT_EQ(dataset.documents().size(), 2u);
  const Document& keeper = dataset.documents()[0];
  EXPECT_EQ(keeper.name, "keeper.txt");
  EXPECT_TRUE(keeper.text.starts_with("THE KEEPER OF SALT ROCK\n\nCHAPTER I\n"));
  EXPECT_TRUE(keeper.text.ends_with("had never been wrong, stopped.\n\n\n"));
  EXPECT_EQ(keeper.text.find('\r'), std::string::npos);
  EXPECT_EQ(dataset.documents()[1].text, read_file(kData + "/books/pell.txt"));
}

TEST(Datasets, GutenbergMarkersOldAndNew) {
  EXPECT_EQ(book_text("a\n***START OF THE PROJECT GUTENBERG EBOOK X***\nb\n"
                      "***END OF THE PROJECT GUTENBERG EBOOK X***\nc"),
            "b\n");
  EXPECT_EQ(book_text("a\n*** START OF THIS PROJECT GUTENBERG EBOOK LONG\nTITLE ***\n\nb"), "b");
  EXPECT_EQ(book_text("a *** START OF THE PROJECT GUTENBERG EBOOK X ***\nb"),
            "a *** START OF THE PROJECT GUTENBERG EBOOK X ***\nb");
  EXPECT_EQ(book_text("a\n*** START OF THE WAR ***\nb"), "a\n*** START OF THE WAR ***\nb");
  EXPECT_EQ(book_text("*** START OF THE PROJECT GUTENBERG EBOOK X ***"), "");
}

TEST(Datasets, Pg19FormsAgree) {
  const Dataset lines = Dataset::load("pg19:" + kData + "/pg19.jsonl");
  const Dataset array = Dataset::load("pg19:" + kData + "/pg19.json");
  const Dataset folder = Dataset::load("pg19:" + kData + "/books");
  ASSERT_EQ(lines.documents().size(), 2u);
  ASSERT_EQ(array.documents().size(), 2u);
  ASSERT_EQ(folder.documents().size(), 2u);
  EXPECT_EQ(lines.documents()[1].name, "pg19.jsonl line 2");
  EXPECT_EQ(array.documents()[1].name, "pg19.json record 2");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(lines.documents()[i].text, array.documents()[i].text);
    EXPECT_TRUE(folder.documents()[i].text.starts_with(lines.documents()[i].text));
  }
}

TEST(Datasets, SummarizationFields) {
  const Dataset books = Dataset::load("infinitebench:" + kData);
  ASSERT_EQ(books.documents().size(), 3u);
  EXPECT_EQ(books.documents()[1].text, "Too short for anything.");
  const Dataset cases = Dataset::load("multilexsum:" + kData + "/multilexsum.json");
  ASSERT_EQ(cases.documents().size(), 2u);
  EXPECT_TRUE(cases.documents()[0].text.starts_with("COMPLAINT. "));
  EXPECT_NE(cases.documents()[0].text.find("twenty-one days.\nCONSENT DECREE."), std::string::npos);
}

TEST(Datasets, GzipGivesTheSameDocuments) {
  const Dataset plain = Dataset::load("c4:" + kData + "/c4.json");
  const Dataset packed = Dataset::load("c4:" + kData + "/c4.json.gz");
  ASSERT_EQ(plain.documents().size(), 4u);
  ASSERT_EQ(packed.documents().size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(plain.documents()[i].text, packed.documents()[i].text);
  EXPECT_EQ(packed.documents()[3].name, "c4.json.gz line 4");
}

TEST(Datasets, GzipOfSeveralMembersAndManyBuffers) {
  const TestFolder folder;
  std::string text;
  while (text.size() < 1000000) text += fmt::format("Line {} of a long text.\n", text.size());
  const std::string path = folder.write("a.txt.gz", gzipped(text) + gzipped("The end."));
  EXPECT_EQ(Dataset::load("text:" + path).documents().front().text, text + "The end.");
}

TEST(Datasets, ZerosAfterGzipArePadding) {
  const TestFolder folder;
  const std::string packed = gzipped("The text.") + gzipped(" The end.");
  for (const std::size_t zeros : {1, 511, 4096}) {
    const std::string path = folder.write("a.txt.gz", packed + std::string(zeros, '\0'));
    EXPECT_EQ(Dataset::load("text:" + path).documents().front().text, "The text. The end.");
    folder.write("a.txt.gz", packed + std::string(zeros, '\0') + "x");
    expect_corrupt("text:" + path, {path, "broken gzip data"});
  }
  const std::string zeros = folder.write("b.txt.gz", std::string(512, '\0'));
  expect_corrupt("text:" + zeros, {zeros, "broken gzip data"});
}

TEST(Datasets, BrokenGzipNamesTheFile) {
  const TestFolder folder;
  const std::string good = read_file(kData + "/c4.json.gz");
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::string path = folder.write("cut.json.gz", good.substr(0, size));
    expect_corrupt("c4:" + path, {path, "cut short"});
  }
  std::string flipped = good;
  flipped[good.size() - 8] ^= 1;  // of the checksum
  const std::string path = folder.write("sum.json.gz", flipped);
  expect_corrupt("c4:" + path, {path, "broken gzip data", "incorrect data check"});
  const std::string plain = folder.write("plain.json.gz", read_file(kData + "/c4.json"));
  expect_corrupt("c4:" + plain, {plain, "broken gzip data", "incorrect header check"});
  const std::string tail = folder.write("tail.json.gz", good + "more");
  expect_corrupt("c4:" + tail, {tail, "broken gzip data"});
}

// A small file that would fill the memory.
TEST(Datasets, GzipThatGrowsTooMuchIsRefused) {
  const TestFolder folder;
  const std::string bomb = folder.write("bomb.txt.gz", gzipped(std::string(120'000'000, 'x')));
  expect_corrupt("text:" + bomb, {bomb, "decompress to more than", "without .gz"});
  // Many members, none of which makes more than the buffer holds.
  std::string members;
  for (int i = 0; i < 400; ++i) members += gzipped(std::string(250'000, 'x'));
  const std::string many = folder.write("many.txt.gz", members);
  expect_corrupt("text:" + many, {many, "decompress to more than", "without .gz"});
  const std::string fine = folder.write("fine.txt.gz", gzipped(std::string(50'000'000, 'x')));
  EXPECT_EQ(Dataset::load("text:" + fine).documents()[0].text.size(), 50'000'000u);
}

// A whole array was parsed at once, in time quadratic in its records.
TEST(Datasets, ATextThatThereIsNoMemoryForIsRefusedByName) {
  const TestFolder folder;
  for (const char* name : {"book.txt", "book.txt.gz"}) {
    const auto path = folder.write(name, "text");
    std::filesystem::resize_file(path, std::uintmax_t{1} << 43);  // takes no room on the disk
    expect_error(ErrorKind::kOutOfMemory, {name, "a part of it works"},
                 [&] { Dataset::load("text:" + path.string()); });
  }
}

TEST(Datasets, TimeIsLinearInTheNumberOfRecords) {
  const TestFolder folder;
  constexpr int kRecords = 200'000;
  std::string lines, array;
  for (int i = 0; i < kRecords; ++i) {
    const std::string record = R"({"text": "some words", "meta": {"id": 7}})";
    lines += record + "\n";
    array += (i == 0 ? "[" : ", ") + record;
  }
  const std::string lines_path = folder.write("lines.json", lines);
  const std::string array_path = folder.write("array.json", array + "]");
  const Stopwatch clock;
  for (const std::string& path : {lines_path, array_path}) {
    const Dataset dataset = Dataset::load("c4:" + path);
    ASSERT_EQ(dataset.documents().size(), std::size_t{kRecords});
    EXPECT_EQ(dataset.documents().back().text, "some words");
  }
  EXPECT_LT(clock.seconds(), 60);
}

TEST(Datasets, BrokenRecordsNameFileAndRecord) {
  const TestFolder folder;
  const auto expect = [&](const char* kind, const char* text,
                          const std::vector<std::string>& mentions) {
    const std::string path = folder.write("longbook_sum_eng.jsonl", text);
    std::vector<std::string> all = mentions;
    all.push_back(path);
    expect_corrupt(std::string(kind) + ":" + path, all);
  };
  expect("c4", "", {"the file is empty"});
  expect("c4", " \n\n", {"the file is empty"});
  expect("c4", "[]", {"no records"});
  expect("c4", "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", {"line 3", "not valid JSON"});
  expect("c4", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", {"line 2", "\"text\" is missing"});
  expect("c4", "{\"text\": \"a\"}\n7\n", {"line 2", "not a JSON object"});
  expect("c4", "{\"text\": null}", {"line 1", "\"text\" is neither a string"});
  expect("c4", "{\"text\": \"a\xFF\"}", {"line 1", "not valid JSON"});
  expect("infinitebench", "{\"id\": 0, \"input\": \"\"}", {"line 1", "\"context\" is missing"});
  expect("multilexsum", R"([{"sources": ["a"]}, {"id": "x"}])",
         {"record 2", "\"sources\" is missing"});
  expect("multilexsum", R"([{"sources": ["a", 7]}])", {"record 1", "\"sources\" is neither"});
  expect("multilexsum", R"([{"sources": ["a"]})", {"not valid JSON"});
  expect("pg19", "no JSON at all", {"line 1", "not valid JSON"});
  expect("tasks", R"({"task": "a"})", {"line 1", "\"text\" is missing"});
  expect("tasks", R"({"text": "a"})", {"line 1", "\"task\" is missing"});
  expect("tasks", R"([{"text": "a", "task": "b"}, {"text": "a", "task": ["b"]}])",
         {"record 2", "\"task\" is not a string"});
  expect("tasks", R"({"text": "a", "task": "b", "answer": null})",
         {"line 1", "\"answer\" is not a string"});
}

TEST(Datasets, TextWithoutTextNamesTheFile) {
  const TestFolder folder;
  folder.write("a.txt", "A good one.");
  const std::string path = folder.write("b.txt", "");
  for (const char* kind : {"text", "pg19", "wikitext", "recall"}) {
    expect_corrupt(std::string(kind) + ":" + folder.path().string(), {path, "no text"});
  }
  folder.write("b.txt", "x\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n");
  expect_corrupt("text:" + folder.path().string(), {path, "no text"});
}

TEST(Datasets, BinaryFilesAreRefusedNamingFileAndByte) {
  const TestFolder folder;
  const std::string words = "Some words of \xC3\xA9t\xC3\xA9";  // 19 bytes
  for (const auto& [bytes, byte] : std::vector<std::pair<std::string, std::string>>{
           {std::string(1, '\0') + " and more", "byte 19 is 0x00"},
           {"\xFF and more", "byte 19 is 0xff"},
           {" and\xC3(more", "byte 23 is 0xc3"},
           {" cut short\xE2\x82", "byte 29 is 0xe2"}}) {
    const std::string path = folder.write("a.txt", words + bytes);
    for (const char* kind : {"text", "pg19", "wikitext", "recall"}) {
      expect_corrupt(std::string(kind) + ":" + path, {path + ": no text: " + byte});
    }
    const std::string zipped = folder.write("a.txt.gz", gzipped(words + bytes));
    expect_corrupt("text:" + zipped, {zipped + ": no text: " + byte});
  }
  EXPECT_EQ(Dataset::load("text:" + folder.write("a.txt", words).string()).documents()[0].text,
            words);
}

TEST(Prompts, PiecesAreConsecutiveAndExact) {
  const Dataset dataset = Dataset::load("text:" + kData + "/books");
  const PromptOptions options{.length = 90, .count = 5, .continuation = 40};
  const std::vector<Prompt> prompts = dataset.prompts(tokenizer(), options);
  ASSERT_EQ(prompts.size(), 5u);
  expect_framed(prompts, 90);
  // The first of each document, then the second of each.
  const int documents[] = {0, 1, 0, 1, 0};
  const int pieces[] = {0, 0, 1, 1, 2};
  for (int i = 0; i < 5; ++i) {
    const Document& document = dataset.documents()[documents[i]];
    const std::vector<TokenId> tokens = encoded(document.text);
    const std::size_t start = document.text.size() / 400 + 89 * pieces[i];
    EXPECT_EQ(body(prompts[i]), slice(tokens, start, 89)) << i;
    EXPECT_EQ(prompts[i].continuation, slice(tokens, start + 89, 40)) << i;
    EXPECT_EQ(prompts[i].name, fmt::format("{}, token {}", document.name, start));
  }
}

TEST(Prompts, FewerWillDoWhereTheCallerSaysSo) {
  const std::string spec = "text:" + kData + "/books";
  const PromptOptions options{.length = 150, .count = 100, .fewer_will_do = true};
  const std::vector<Prompt> prompts = cut(spec, options);
  ASSERT_GT(prompts.size(), 1u);
  ASSERT_LT(prompts.size(), 100u);
  const int all = static_cast<int>(prompts.size());
  EXPECT_EQ(cut(spec, {.length = 150, .count = all}).back().tokens, prompts.back().tokens);
  expect_error(ErrorKind::kInvalidRequest, {"no document holds"},
               [&] { cut(spec, {.length = 100000, .fewer_will_do = true}); });
}

TEST(Prompts, TheSameEveryTime) {
  const Dataset dataset = Dataset::load("text:" + kData + "/books");
  const PromptOptions options{.length = 100, .count = 6, .continuation = 9};
  const auto first = dataset.prompts(tokenizer(), options);
  const auto second = Dataset::load(dataset.spec()).prompts(tokenizer(), options);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(first[i].name, second[i].name);
    EXPECT_EQ(first[i].tokens, second[i].tokens);
    EXPECT_EQ(first[i].continuation, second[i].continuation);
  }
  // Fewer are the first of more.
  const auto fewer = dataset.prompts(tokenizer(), {.length = 100, .count = 2, .continuation = 9});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(fewer[i].tokens, first[i].tokens);
}

TEST(Prompts, ADocumentMayBeUsedToItsLastToken) {
  const std::string path = kData + "/books/pell.txt";
  const std::vector<TokenId> tokens = encoded(read_file(path));
  const int size = static_cast<int>(tokens.size());
  const auto whole = cut("text:" + path, {.length = size + 1});
  EXPECT_EQ(body(whole.front()), tokens);
  const auto nearly = cut("text:" + path, {.length = size, .continuation = 1});
  EXPECT_EQ(body(nearly.front()), slice(tokens, 0, size - 1));
  EXPECT_EQ(nearly.front().continuation, slice(tokens, size - 1, 1));
  expect_error(ErrorKind::kInvalidRequest,
               {"dataset 'text:", fmt::format("no document holds {} tokens", size + 2),
                fmt::format("the longest, pell.txt, has {} tokens", size + 1)},
               [&] { cut("text:" + path, {.length = size + 2}); });
  expect_error(ErrorKind::kInvalidRequest, {fmt::format("{} tokens and 1 after them", size + 1)},
               [&] { cut("text:" + path, {.length = size + 1, .continuation = 1}); });
}

TEST(Prompts, FewerThanWantedSaysHowMany) {
  expect_error(ErrorKind::kInvalidRequest,
               {"dataset 'text:", "100 prompts of 150 tokens", "there are 4"},
               [] { cut("text:" + kData + "/books", {.length = 150, .count = 100}); });
  expect_error(ErrorKind::kInvalidRequest, {"a prompt of 1 tokens holds no text"},
               [] { cut("text:" + kData + "/books", {.length = 1}); });
}

TEST(Prompts, Pg19DropsTheFirst8000TokensOfABook) {
  std::string book;
  for (int i = 0; i < 3000; ++i) book += fmt::format("The {}th sentence.\n", i);
  const TestFolder folder;
  const std::string path = folder.write("a.txt", book);
  const std::vector<TokenId> tokens = encoded(book);
  ASSERT_GT(tokens.size(), 9000u);
  EXPECT_EQ(body(cut("pg19:" + path, {.length = 501}).front()), slice(tokens, 8000, 500));
  // A book that is too short for that ends with its prompt.
  const int length = static_cast<int>(tokens.size()) - 7000;
  const auto late = cut("pg19:" + path, {.length = length + 1, .continuation = 3});
  EXPECT_EQ(body(late.front()), slice(tokens, 6997, length));
}

TEST(Prompts, SummariesAreInstructionDocumentQuestion) {
  const Dataset dataset = Dataset::load("infinitebench:" + kData);
  const auto prompts = dataset.prompts(tokenizer(), {.length = 200, .count = 2, .continuation = 5});
  ASSERT_EQ(prompts.size(), 2u);
  expect_framed(prompts, 200);
  EXPECT_EQ(prompts[0].name, "longbook_sum_eng.jsonl line 1");
  EXPECT_EQ(prompts[1].name, "longbook_sum_eng.jsonl line 3");  // the second is too short
  const std::string instruction = "You are given a book. Please summarize it.\n\n";
  const std::string question = "\n\nNow please summarize the book.\n\nSummary:";
  for (const Prompt& prompt : prompts) {
    const Document& document = dataset.documents()[&prompt == prompts.data() ? 0 : 2];
    std::vector<TokenId> expected = encoded(instruction + document.text);
    const std::vector<TokenId> end = encoded(question);
    expected.resize(199 - end.size());
    expected.insert(expected.end(), end.begin(), end.end());
    EXPECT_EQ(body(prompt), expected);
    EXPECT_TRUE(prompt.continuation.empty());
  }
  expect_error(ErrorKind::kInvalidRequest, {"dataset", "2 prompts", "there are 1"}, [] {
    cut("multilexsum:" + kData + "/multilexsum.json", {.length = 310, .count = 2});
  });
  expect_error(ErrorKind::kInvalidRequest, {"no document holds", "longest, longbook_sum_eng.jsonl"},
               [&] { dataset.prompts(tokenizer(), {.length = 5000}); });
  expect_error(ErrorKind::kInvalidRequest, {"holds the instruction alone"},
               [&] { dataset.prompts(tokenizer(), {.length = 20}); });
}

TEST(Tasks, RecordsOfEitherFormHaveTaskAndAnswer) {
  const TestFolder folder;
  folder.write("a.jsonl", R"({"text": "One.", "task": " Two", "answer": " three"})");
  folder.write("b.json", R"([{"text": "Four.", "task": " Five", "place": 7}])");
  const Dataset dataset = Dataset::load("tasks:" + folder.path().string());
  ASSERT_EQ(dataset.documents().size(), 2u);
  const Document& first = dataset.documents()[0];
  EXPECT_EQ(first.name, "a.jsonl line 1");
  EXPECT_EQ(first.text + first.question + first.answer, "One. Two three");
  const Document& second = dataset.documents()[1];
  EXPECT_EQ(second.name, "b.json record 1");
  EXPECT_EQ(second.text + second.question + second.answer, "Four. Five");
}

TEST(Tasks, TheEndOfATextIsKeptAndTheWholeTask) {
  const TestFolder folder;
  const std::string book = read_file(kData + "/books/pell.txt");
  const std::string task = "\n\nThey read the same words again:";
  const std::string answer = " there was never such a winter on the coast as that one was.";
  const auto record = [&](const std::string& text, bool answered) {
    Json fields{{"text", text}, {"task", task}};
    if (answered) fields["answer"] = answer;
    return dump_json(fields) + "\n";
  };
  const std::string path = folder.write(
      "a.jsonl", record(book, false) + record("Short.", true) + record("x " + book, true));
  const std::vector<TokenId> whole = encoded(book + task);
  const auto prompts = cut("tasks:" + path, {.length = 150, .count = 2});
  expect_framed(prompts, 150);
  EXPECT_EQ(prompts[0].name, "a.jsonl line 1");
  EXPECT_EQ(prompts[1].name, "a.jsonl line 3");  // the second is too short
  for (const Prompt& prompt : prompts) {
    EXPECT_EQ(body(prompt), slice(whole, whole.size() - 149, 149));
    EXPECT_TRUE(prompt.continuation.empty());
  }
  // Where what truly follows is measured, records count whose answers are long enough.
  const auto answered = cut("tasks:" + path, {.length = 150, .count = 1, .continuation = 5});
  EXPECT_EQ(answered.front().name, "a.jsonl line 3");
  EXPECT_EQ(body(answered.front()), body(prompts[1]));
  EXPECT_EQ(answered.front().continuation,
            slice(encoded("x " + book + task + answer), encoded("x " + book + task).size(), 5));
  expect_error(ErrorKind::kInvalidRequest, {"no document holds 150 tokens and 99 after them"},
               [&] { cut("tasks:" + path, {.length = 150, .count = 1, .continuation = 99}); });
}

TEST(Tasks, WhatDoesNotFitNamesItsRecord) {
  const TestFolder folder;
  const std::string path = folder.write(
      "a.jsonl",
      R"({"text": "There was a man", "task": " who would not unders", "answer": "tand"})");
  expect_error(ErrorKind::kInvalidRequest,
               {"dataset 'tasks:", "5 tokens holds the instruction alone, of a.jsonl line 1"},
               [&] { cut("tasks:" + path, {.length = 5}); });
  expect_error(ErrorKind::kInvalidRequest,
               {"dataset 'tasks:", "the answer of a.jsonl line 1 begins within a token"},
               [&] { cut("tasks:" + path, {.length = 9, .continuation = 1}); });
}

TEST(Prompts, ShortDocumentsAreJoined) {
  const Dataset dataset = Dataset::load("c4:" + kData + "/c4.json");
  std::string joined = dataset.documents()[0].text;
  for (int i = 1; i < 4; ++i) joined += "\n\n" + dataset.documents()[i].text;
  const std::vector<TokenId> tokens = encoded(joined);
  const auto prompts = dataset.prompts(tokenizer(), {.length = 41, .count = 3, .continuation = 10});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(body(prompts[i]), slice(tokens, 40 * i, 40));
    EXPECT_EQ(prompts[i].continuation, slice(tokens, 40 * (i + 1), 10));
  }
  const int all = static_cast<int>(tokens.size()) + 1;
  EXPECT_EQ(body(dataset.prompts(tokenizer(), {.length = all}).front()), tokens);
  expect_error(ErrorKind::kInvalidRequest, {fmt::format("has {} tokens", all)},
               [&] { dataset.prompts(tokenizer(), {.length = all + 1}); });
  const std::string wiki = kData + "/wiki.test.raw";
  EXPECT_EQ(body(cut("wikitext:" + wiki, {.length = 101}).front()),
            slice(encoded(read_file(wiki)), 0, 100));
}

TEST(Recall, EndsInAPassageThatStoodThatFarBack) {
  const std::string books = kData + "/books";
  for (const int distance : {57, 100, 130, 183}) {
    const auto prompts =
        cut("recall:" + books,
            {.length = 200, .count = 2, .continuation = 40, .recall_distance = distance});
    const auto plain = cut("text:" + books, {.length = 200, .count = 2});
    expect_framed(prompts, 200);
    for (int i = 0; i < 2; ++i) {
      const auto& tokens = prompts[i].tokens;
      const std::size_t passage = 200 - kRecallTokens - distance;
      EXPECT_EQ(slice(tokens, passage, kRecallTokens), slice(tokens, 184, kRecallTokens));
      EXPECT_EQ(prompts[i].continuation, slice(tokens, passage + kRecallTokens, 40));
      EXPECT_EQ(slice(tokens, 0, 184), slice(plain[i].tokens, 0, 184));
      EXPECT_NE(tokens, plain[i].tokens);
    }
  }
}

TEST(Recall, HalfOfTheLengthByDefault) {
  const std::string spec = "recall:" + kData + "/books";
  const auto given = cut(spec, {.length = 200, .continuation = 9, .recall_distance = 100});
  EXPECT_EQ(cut(spec, {.length = 200, .continuation = 9}).front().tokens, given.front().tokens);
}

TEST(Recall, DistanceThatDoesNotFitIsRefused) {
  const auto expect = [](const PromptOptions& options, const std::vector<std::string>& mentions,
                         const std::string& kind = "recall") {
    expect_error(ErrorKind::kInvalidRequest, mentions,
                 [&] { cut(kind + ":" + kData + "/books", options); });
  };
  for (const int distance : {-5, 16, 56, 184, 5000}) {
    expect({.length = 200, .continuation = 41, .recall_distance = distance},
           {fmt::format("recall distance {}", distance), "57 to 183"});
  }
  expect({.length = 200, .continuation = 180}, {"recall distance 100", "213 tokens can"});
  expect({.length = 10}, {"recall distance 5", "34 tokens can"});
  expect({.length = 200, .recall_distance = 50}, {"recall distance", "of another kind"}, "text");
}

TEST(PartialEncoding, IsTheStartOfTheWhole) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += read_file(kData + "/books/keeper.txt") + " \n\t " + read_file(kData + "/c4.json");
    text += i % 7 == 0 ? "   \xE6\x96\x87\xE5\xAD\x97\xFF" : "<s> ";
  }
  const std::vector<TokenId> all = encoded(text);
  for (std::size_t count = 1; count < all.size(); count += count / 3 + 1) {
    PartialEncoding fresh(text, tokenizer());
    const auto& tokens = fresh.at_least(count);
    ASSERT_GE(tokens.size(), count);
    EXPECT_EQ(tokens, slice(all, 0, tokens.size())) << count;
    EXPECT_LT(tokens.size(), 6 * count + 400) << "more was encoded than was needed";
  }
  PartialEncoding grown(text, tokenizer());
  EXPECT_LT(grown.at_least(10).size(), all.size());
  EXPECT_EQ(grown.at_least(all.size()), all);
  EXPECT_EQ(grown.at_least(all.size() + 1), all);
}

}  // namespace quantspec
