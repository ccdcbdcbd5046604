#include "net/hub.h"

#include "base/error.h"
#include "base/log.h"
#include "net/answer_text.h"
#include "net/connection.h"

namespace quantspec::net {

Answer Hub::refusal(const Refusal& refusal) {
  if (options.refuse) {
    try {
      Answer answer = options.refuse(refusal.status, refusal.text);
      check(are_sendable(answer.headers), "headers of a refusal are printable and no framing");
      answer.status = refusal.status;
      return answer;
    } catch (...) {
      log_caught("making a refusal");
    }
  }
  return {refusal.status, {{"Content-Type", "text/plain; charset=utf-8"}}, refusal.text + "\n"};
}

void Hub::add(const std::shared_ptr<Connection>& connection) {
  connection->index = connections.size();
  connections.push_back(connection);
  if (!connection->key().empty()) ++connections_of[connection->key()];
  counters.connections = connections.size();
}

void Hub::remove(Connection& connection) {
  const auto known = connections_of.find(connection.key());
  if (known != connections_of.end() && --known->second == 0) connections_of.erase(known);
  if (connection.is_refused()) --num_refused;
  const std::size_t index = connection.index;  // `connection` may end here
  std::swap(connections[index], connections.back());
  connections[index]->index = index;
  connections.pop_back();
  counters.connections = connections.size();
}

}  // namespace quantspec::net
