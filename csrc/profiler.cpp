// The card's operations in torch.profiler's traces: see profiler.h.
//
// A session asks the driver to record at its start, and for what was recorded at its stop. The
// card's stamps are virtual: they are shifted so that the moment at which the session started is
// the same on both clocks, and stand in a process row of their own for each card.
#include "profiler.h"

#ifdef USE_KINETO
// torch exports nothing of fmt, which the inline functions of Kineto's headers call.
#define FMT_HEADER_ONLY 1
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace spyre {
namespace {

using libkineto::ActivityType;

const std::set<ActivityType> kOnCard = {ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                        ActivityType::CONCURRENT_KERNEL};

// All of these are activities of a PrivateUse1 device to torch; the last is no kernel to anybody.
const std::map<std::string, ActivityType> kTypes = {{"memcpy", ActivityType::GPU_MEMCPY},
                                                    {"memset", ActivityType::GPU_MEMSET},
                                                    {"kernel", ActivityType::CONCURRENT_KERNEL},
                                                    {"sync", ActivityType::CUDA_SYNC}};

int64_t wall_clock() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// The ops that this thread is in, outermost first. What a session that ended inside an op left
// behind is dropped when the next one begins.
struct Ops {
  uint64_t session = 0;
  std::vector<uint64_t> ids;
};

thread_local Ops ops;
std::atomic<uint64_t> sessions{0};
std::atomic<uint64_t> recording{0};  // the number of the session that records; 0 for none

// One operation as the driver describes it; times in virtual ns since the session's start.
struct Operation {
  int card, queue, failed;
  std::string queue_name, type, name, pipeline;
  long long ticket, start, end, correlation, bytes;
};

Operation operation_of(PyObject* row) {
  Operation op;
  const char *queue_name, *type, *name, *pipeline;
  if (!PyArg_ParseTuple(row, "iissssLLLLLp", &op.card, &op.queue, &queue_name, &type, &name,
                        &pipeline, &op.ticket, &op.start, &op.end, &op.correlation, &op.bytes,
                        &op.failed))
    throw_pending_error();
  op.queue_name = queue_name;
  op.type = type;
  op.name = name;
  op.pipeline = pipeline;
  return op;
}

std::vector<Operation> operations_of(const Ref& rows) {
  const Ref list = checked(PySequence_Fast(rows.get(), "driver.stop_trace() must give rows"));
  std::vector<Operation> result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i)
    result.push_back(operation_of(PySequence_Fast_GET_ITEM(list.get(), i)));
  return result;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override {
    guarded([this] { stop_recording(); });
  }

  void start() override {
    started_ = wall_clock();
    guarded([this] {
      refuse_if_gone("the card's trace");
      const Gil gil;
      driver_ = &driver();
      trace_ = to_int((*driver_)(Method::start_trace));
      recording = number_;
      status_ = libkineto::TraceStatus::RECORDING;
    });
  }

  void stop() override {
    guarded([this] {
      stop_recording();
      status_ = libkineto::TraceStatus::READY;
    });
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, nullptr, started_, wall_clock());
  }

  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback op_by_id, int64_t start,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(started_, wall_clock(), c10::get_privateuse1_backend());
    buffer_->gpuOpCount = static_cast<int>(operations_.size());
    for (const auto& op : operations_) {
      buffer_->emplace_activity(buffer_->span, kTypes.at(op.type), op.name);
      auto& activity = *buffer_->activities.back();
      fill(activity, op);
      if (op.correlation && op_by_id) activity.linked = op_by_id(op.correlation);
      activity.log(logger);
      queues_.insert({{op.card, op.queue}, op.queue_name});
    }
    operations_.clear();
    // Kineto asks for one card below; the others are said here.
    for (const int card : cards())
      if (card != *cards().begin()) logger.handleDeviceInfo(row_of(card), start);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (queues_.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(row_of(*cards().begin()));
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> result;
    for (const auto& [place, name] : queues_)
      result.push_back({place.second, place.second, place.first, "queue " + name});
    return result;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    if (ops.session != number_) ops = {number_, {}};
    ops.ids.push_back(id);
  }
  void popCorrelationId() override {
    if (ops.session == number_ && !ops.ids.empty()) ops.ids.pop_back();
  }
  void pushUserCorrelationId(uint64_t id) override { pushCorrelationId(id); }
  void popUserCorrelationId() override { popCorrelationId(); }

 private:
  // Kineto calls from inside torch's own bookkeeping, which an exception would leave half done.
  template <class Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      status_ = libkineto::TraceStatus::ERROR;
      errors_.emplace_back(error.what());
      TORCH_WARN("torch.profiler records no operations of the card: ", error.what());
    }
  }

  // The driver that started the trace is the one that knows it.
  void stop_recording() {
    uint64_t mine = number_;
    if (!recording.compare_exchange_strong(mine, 0) || interpreter_gone()) return;
    const Gil gil;
    operations_ = operations_of((*driver_)(Method::stop_trace, trace_));
  }

  void fill(libkineto::GenericTraceActivity& activity, const Operation& op) const {
    activity.id = static_cast<int32_t>(op.ticket);
    activity.device = op.card;
    activity.resource = op.queue;
    activity.startTime = started_ + op.start;
    activity.endTime = started_ + op.end;
    activity.addMetadata("device", op.card);
    activity.addMetadata("stream", op.queue);
    activity.addMetadataQuoted("pipeline", op.pipeline);
    activity.addMetadata("bytes", op.bytes);
    if (op.failed) activity.addMetadata("failed", 1);
  }

  std::set<int> cards() const {
    std::set<int> result;
    for (const auto& queue : queues_) result.insert(queue.first.first);
    return result;
  }

  static libkineto::DeviceInfo row_of(int card) {
    const auto name = c10::get_privateuse1_backend();
    return {card, card + libkineto::kExceedMaxPid, name,
            c10::str(name, ":", card, ", virtual time")};
  }

  const uint64_t number_ = ++sessions;
  const Driver* driver_ = nullptr;
  int64_t trace_ = 0, started_ = 0;
  std::vector<Operation> operations_;
  std::map<std::pair<int, int>, std::string> queues_;  // card and number: name
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::vector<std::string> errors_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return kOnCard; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    for (const auto type : kOnCard)
      if (wanted.count(type)) return std::make_unique<Session>();
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = c10::get_privateuse1_backend();
};

}  // namespace

void register_profiler() {
  auto& registry = torch::profiler::impl::PrivateUse1ProfilerRegistry::instance();
  if (!registry.hasFactory()) registry.registerFactory([] { return std::make_unique<Profiler>(); });
}

int64_t correlation_id() noexcept {
  if (ops.ids.empty() || ops.session != recording) return 0;
  return static_cast<int64_t>(ops.ids.back());
}

}  // namespace spyre

#else

namespace spyre {

void register_profiler() {}
int64_t correlation_id() noexcept { return 0; }

}  // namespace spyre

#endif
