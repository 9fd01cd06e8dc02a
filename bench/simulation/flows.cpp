// Activities with dependencies, simulated by SimGrid (S4U, 3.32 or newer).
//
//   flows PLATFORM.xml < ACTIVITIES      prints {"makespan_s", "activities", "wall_s", "cpu_s"}
//
// A line is `flow SRC DST BYTES`, `read HOST BYTES`, `write HOST BYTES` (on the host's disk), `exec HOST FLOPS`, or
// `after A B`: B, an activity's number in order of lines, starts once A has ended.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

// What SimGrid offers on its typed activities only.
struct Step {
  sg::ActivityPtr activity;
  std::function<void(sg::ActivityPtr)> precede;
  std::function<void()> start;
};

template <class T> static Step step(T typed)
{
  return {typed, [typed](sg::ActivityPtr next) { typed->add_successor(next); },
          [typed]() { typed->vetoable_start(); }};
}

static Step parsed(const sg::Engine& engine, const std::string& kind)
{
  std::string host;
  std::cin >> host;
  auto* at = engine.host_by_name(host);
  if (kind == "flow") {
    std::string to;
    double bytes;
    std::cin >> to >> bytes;
    auto comm = sg::Comm::sendto_init(at, engine.host_by_name(to));
    comm->set_payload_size(static_cast<uint64_t>(bytes));
    return step(comm);
  }
  double amount;
  std::cin >> amount;
  if (kind == "exec") {
    auto exec = sg::Exec::init();
    exec->set_flops_amount(amount);
    exec->set_host(at);
    return step(exec);
  }
  auto io = sg::Io::init();
  io->set_disk(at->get_disks().at(0));
  io->set_size(static_cast<sg_size_t>(amount));
  io->set_op_type(kind == "read" ? sg::Io::OpType::READ : sg::Io::OpType::WRITE);
  return step(io);
}

int main(int count, char** words)
{
  sg::Engine engine(&count, words);
  engine.load_platform(words[1]);
  std::vector<Step> all;
  for (std::string kind; std::cin >> kind;) {
    if (kind == "after") {
      size_t first, then;
      std::cin >> first >> then;
      all.at(first).precede(all.at(then).activity);
    } else {
      all.push_back(parsed(engine, kind));
    }
  }
  const std::clock_t cpu = std::clock();
  const auto began = std::chrono::steady_clock::now();
  for (auto& each : all)
    each.start();
  engine.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const double cpu_s = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  for (auto& each : all)
    if (each.activity->get_state() != sg::Activity::State::FINISHED) {
      std::fprintf(stderr, "flows: an activity did not end\n");
      return 1;
    }
  std::printf("{\"makespan_s\": %.17g, \"activities\": %zu, \"wall_s\": %.9g, \"cpu_s\": %.9g}\n",
              sg::Engine::get_clock(), all.size(), took.count(), cpu_s);
  return 0;
}
