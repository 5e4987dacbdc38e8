// CUDA's device guard and hooks for a build of PyTorch that has none: every call is answered by
// tests/standin_gpu.py. So the real torch.Event and torch.accelerator work, and
// autograd runs its backward pass for tensors that say they are on "cuda".
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/DeviceAccelerator.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

namespace {

struct Answers {
  void (*record)(int64_t event, int device);
  int (*passed)(int64_t event);
  double (*elapsed_ms)(int64_t start, int64_t end); // NaN where one of them has not passed
  void (*finish)(int device);
  void (*finish_event)(int64_t event);
} answers{};

constexpr auto CUDA = c10::DeviceType::CUDA;
int cards = 0;
int64_t new_events = 0;
thread_local int current = 0;

int64_t number(void* event) { return *static_cast<int64_t*>(event); }

struct Guard : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return c10::Device(CUDA, current); }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  // A card has one stream: no test has asked for two
  c10::Stream getStream(c10::Device device) const override {
    int index = device.index() < 0 ? current : device.index();
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(CUDA, index));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<int64_t*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new int64_t(++new_events);
    answers.record(number(*event), stream.device_index());
  }
  void block(void*, const c10::Stream&) const override { TORCH_CHECK(false, "one stream"); }
  bool queryEvent(void* event) const override { return !event || answers.passed(number(event)); }
  c10::DeviceIndex deviceCount() const noexcept override { return cards; }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeDevice(const c10::DeviceIndex device) const override { answers.finish(device); }
  void synchronizeEvent(void* event) const override { answers.finish_event(number(event)); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    double ms = answers.elapsed_ms(number(start), number(end));
    TORCH_CHECK(!std::isnan(ms), "Both events must be completed before calculating elapsed time.");
    return ms;
  }
};

// Holds: a run from pinned memory is never synchronised
std::mutex pins;
std::map<const char*, size_t> pinned; // start and size of every block

struct PinnedMemory : c10::Allocator {
  static void free(void* place) {
    std::unique_lock<std::mutex> hold(pins);
    pinned.erase(static_cast<char*>(place));
    hold.unlock();
    c10::free_cpu(place);
  }
  c10::DataPtr allocate(size_t size) override {
    void* place = c10::alloc_cpu(size);
    std::lock_guard<std::mutex> hold(pins);
    if (place) pinned[static_cast<char*>(place)] = size;
    return {place, place, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }
} pinned_memory;

struct CUDAHooks : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return cards > 0; }
  bool hasCUDA() const override { return cards > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return cards; }
  int getNumGPUs() const override { return cards; }
  c10::DeviceIndex current_device() const override { return current; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> hold(pins);
    auto block = pinned.upper_bound(static_cast<const char*>(data));
    if (block == pinned.begin()) return false;
    --block;
    return data < block->first + block->second;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void deviceSynchronize(c10::DeviceIndex device) const override { answers.finish(device); }
  // Attention asks from PyTorch 2.14 on: without cuDNN it has kernels of its own. Older ones have no
  // such function to override
  virtual long versionRuntimeCuDNN() const { return 0; }
};

// A build without CUDA has decided when it was compiled that it has no accelerator, and keeps the
// hooks that it found when it was loaded: these two functions are made to jump to ours.
std::optional<c10::DeviceType> accelerator(bool) {
  return cards ? std::optional(CUDA) : std::nullopt;
}

const at::CUDAHooksInterface& hooks() {
  static const CUDAHooks ours{at::CUDAHooksArgs{}};
  return ours;
}

template <typename Function>
int redirect(Function* function, Function* ours) {
  auto* from = reinterpret_cast<char*>(function);
#if defined(__x86_64__)
  unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // mov rax, ours; jmp rax
  size_t at = 2;
#elif defined(__aarch64__)
  unsigned char jump[] = {0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0}; // ldr; br
  size_t at = 8;
#endif
  std::memcpy(jump + at, &ours, sizeof ours);
  size_t page = sysconf(_SC_PAGESIZE);
  auto* start = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(from) / page * page);
  if (mprotect(start, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
  std::memcpy(from, jump, sizeof jump);
  __builtin___clear_cache(from, from + sizeof jump);
  return mprotect(start, 2 * page, PROT_READ | PROT_EXEC);
}

} // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

extern "C" {
int standin_install(int count, Answers with) {
  answers = with;
  cards = count;
  static int failed = redirect(&at::getAccelerator, &accelerator) |
      redirect(&at::detail::getCUDAHooks, &hooks);
  return failed;
}
int standin_device() { return current; }
void standin_use(int device) { current = device; }
}
