// The tables of routes and fields, for programs and for people.
#include <fmt/format.h>

#include <map>
#include <string>

#include "api/core.h"
#include "api/request_fields.h"
#include "api/routes.h"

namespace quantspec::api {

namespace {

OrderedJson schema_of(const RequestField& row) {
  if (row.honour == Honour::kNeutral) {
    OrderedJson values = OrderedJson::parse(row.values);
    values.push_back(nullptr);
    return {{"enum", std::move(values)}, {"description", "not supported: " + std::string(row.doc)}};
  }
  OrderedJson schema = OrderedJson::object();
  switch (row.type) {
    case FieldType::kFlag:
      schema["type"] = "boolean";
      break;
    case FieldType::kWhole:
      schema["type"] = "integer";
      schema["minimum"] = row.least;
      schema["maximum"] = row.most;
      break;
    case FieldType::kReal:
      schema["type"] = "number";
      schema["minimum"] = row.low;
      schema["maximum"] = row.high;
      break;
    case FieldType::kText:
      schema["type"] = "string";
      break;
    case FieldType::kChoice:
      schema["enum"] = OrderedJson::parse(row.values);
      break;
    case FieldType::kTexts: {
      const OrderedJson text = {{"type", "string"}, {"minLength", 1}};
      const OrderedJson list = {{"type", "array"}, {"items", text}, {"maxItems", kMostStops}};
      schema["oneOf"] = OrderedJson::array({text, list});
      break;
    }
    case FieldType::kIds:
      schema["type"] = "array";
      schema["items"] = {{"type", "integer"}, {"minimum", 0}};
      break;
    case FieldType::kObject:
      schema["type"] = "object";
      break;
    case FieldType::kList:
      schema["type"] = "array";
      break;
    case FieldType::kAny:
      break;
  }
  schema["nullable"] = true;
  schema["description"] = row.doc;
  return schema;
}

OrderedJson body_of(Endpoint endpoint) {
  OrderedJson properties = OrderedJson::object(), needed = OrderedJson::array();
  for (const RequestField& row : request_fields()) {
    if (!row.is_of(endpoint)) continue;
    properties[std::string(row.name)] = schema_of(row);
    if (row.required) needed.push_back(row.name);
  }
  OrderedJson schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!needed.empty()) schema["required"] = std::move(needed);
  return {{"required", true}, {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

OrderedJson responses_of(const Route& route) {
  OrderedJson responses = {{"200", {{"description", route.doc}}}};
  if (route.access != Access::kOpen) responses["401"] = {{"description", "no key, or a wrong one"}};
  if (route.endpoint) {
    responses["400"] = {{"description", "a field that cannot be"}};
    responses["413"] = {{"description", "a body that is too large"}};
    responses["415"] = {{"description", "a body that is no JSON"}};
    responses["429"] = {{"description", "full; Retry-After says when to ask again"}};
  }
  responses["503"] = {{"description", "it loads, or ends"}};
  return responses;
}

}  // namespace

OrderedJson make_openapi(const std::string& version) {
  OrderedJson paths = OrderedJson::object();
  for (const Route& route : routes()) {
    OrderedJson operation = {{"summary", route.doc}};
    if (route.path.ends_with("{id}")) {
      operation["parameters"] = OrderedJson::array(
          {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
    }
    if (route.endpoint) operation["requestBody"] = body_of(*route.endpoint);
    operation["responses"] = responses_of(route);
    operation["security"] = OrderedJson::array();
    if (route.access != Access::kOpen) {
      operation["security"].push_back({{"bearer", OrderedJson::array()}});
    }
    paths[std::string(route.path)][route.method == "GET" ? "get" : "post"] = std::move(operation);
  }
  return {{"openapi", "3.0.3"},
          {"info", {{"title", "QuantSpec"}, {"version", version}}},
          {"paths", std::move(paths)},
          {"components",
           {{"securitySchemes", {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

// --- docs/server.md ------------------------------------------------------------------------------

namespace {

std::string where_of(const RequestField& row) {
  static const std::map<Endpoint, std::string_view> kNames = {
      {Endpoint::kChat, "chat"},
      {Endpoint::kCompletions, "text"},
      {Endpoint::kTokenize, "tokenize"},
      {Endpoint::kDetokenize, "detokenize"},
      {Endpoint::kApplyTemplate, "template"}};
  std::string text;
  for (const auto& [endpoint, name] : kNames) {
    if (row.is_of(endpoint)) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

std::string code(std::string_view text) { return fmt::format("`{}`", text); }

}  // namespace

std::string routes_as_markdown() {
  std::string text = "| | path | key | what |\n|---|---|---|---|\n";
  for (const Route& route : routes()) {
    const std::string_view key = route.access == Access::kKey    ? "yes"
                                 : route.access == Access::kOpen ? "no"
                                                                 : "unless opened";
    text += fmt::format("| {} | {} | {} | {} |\n", route.method, code(route.path), key, route.doc);
  }
  return text;
}

std::string fields_as_markdown() {
  std::string text = "| field | in | value | if not said | what |\n|---|---|---|---|---|\n";
  for (const RequestField& row : request_fields()) {
    if (row.honour == Honour::kNeutral) continue;
    const std::string standard = row.required ? "required" : std::string(row.standard);
    text += fmt::format("| {} | {} | {} | {} | {} |\n", code(row.name), where_of(row), row.range(),
                        standard, row.doc);
  }
  text +=
      "\nKnown, and refused (400) unless they ask for nothing:\n\n"
      "| field | in | taken | why |\n|---|---|---|---|\n";
  for (const RequestField& row : request_fields()) {
    if (row.honour != Honour::kNeutral) continue;
    text +=
        fmt::format("| {} | {} | {} | {} |\n", code(row.name), where_of(row), row.range(), row.doc);
  }
  return text;
}

}  // namespace quantspec::api
