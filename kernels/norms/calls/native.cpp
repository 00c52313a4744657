// Calls of norms that were made before, made again without Python: one function for the forward pass, and a node of
// autograd for the backward pass.  `native.py` builds and loads it.
//
// Python makes the first call of a layout, by Triton, and keeps what it launched (`keep_forward`, `keep_backward`).
// A call that differs in anything that the launch depends on, or that torch or Triton would observe, is left to Python:
// `norm` returns None, and the node calls `backward` in Python.
//
// A kernel's tensors are named by their place in its arguments, which the enums below have in the order of
// `forward._launch` and `backward._launch`.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <cuda.h>

#include <ATen/ATen.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t MAX_CALLS = 4096, MAX_PARAMETERS = 48;
constexpr uintptr_t ALIGNED = 16;  // bytes: Triton distinguishes addresses that are multiples

// -- the driver -------------------------------------------------------------------------------------------------------

struct Driver {
    CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**) = nullptr;
    CUresult (*parameter)(CUfunction, size_t, size_t*, size_t*) = nullptr;
    CUresult (*capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
    int32_t (*stream)(int32_t, void**) = nullptr;  // torch's current stream of a device

    Driver() {
        void* cuda = dlopen("libcuda.so.1", RTLD_LAZY);
        void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        if (!cuda || !torch_cuda) return;
        launch = reinterpret_cast<decltype(launch)>(dlsym(cuda, "cuLaunchKernelEx"));
        parameter = reinterpret_cast<decltype(parameter)>(dlsym(cuda, "cuFuncGetParamInfo"));
        capturing = reinterpret_cast<decltype(capturing)>(dlsym(cuda, "cuStreamIsCapturing"));
        stream = reinterpret_cast<decltype(stream)>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
    }

    bool complete() const { return launch && parameter && capturing && stream; }
};

const Driver& driver() {
    static const Driver loaded;
    return loaded;
}

// -- launches ---------------------------------------------------------------------------------------------------------

struct Parameter {
    int slot;        // the place of a tensor; -1: `value`
    uint64_t value;  // its first bytes
};

struct Launch {
    CUfunction function;
    std::array<unsigned, 3> grid;
    unsigned threads, shared_bytes;
    bool early, cooperative;
    std::vector<Parameter> parameters;

    void operator()(CUdeviceptr const* addresses, CUstream stream) const {
        std::array<void*, MAX_PARAMETERS> pointers;
        for (size_t i = 0; i < parameters.size(); ++i) {
            const auto& [slot, value] = parameters[i];
            pointers[i] = const_cast<void*>(slot < 0 ? static_cast<const void*>(&value) : &addresses[slot]);
        }
        std::array<CUlaunchAttribute, 2> attributes{};
        unsigned count = 0;
        if (early) {
            attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count++].value.programmaticStreamSerializationAllowed = 1;
        }
        if (cooperative) {
            attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes[count++].value.cooperative = 1;
        }
        CUlaunchConfig config{};
        config.gridDimX = grid[0], config.gridDimY = grid[1], config.gridDimZ = grid[2];
        config.blockDimX = threads, config.blockDimY = config.blockDimZ = 1;
        config.sharedMemBytes = shared_bytes;
        config.hStream = stream;
        config.attrs = attributes.data(), config.numAttrs = count;
        if (auto error = driver().launch(&config, function, pointers.data(), nullptr))
            throw std::runtime_error("cuLaunchKernelEx failed with " + std::to_string(error));
    }
};

// (function, grid, threads, bytes of shared memory, early, cooperative, [(slot or -1, bytes)]) of Relaunch.described
using Described = std::tuple<uintptr_t, std::array<unsigned, 3>, unsigned, unsigned, bool, bool,
                             std::vector<std::pair<int, std::string>>>;

// None if the kernel takes other parameters: after ours, Triton's have addresses of scratch memory, which is not used.
std::optional<Launch> launch_of(const Described& described) {
    const auto& [function, grid, threads, shared_bytes, early, cooperative, parameters] = described;
    Launch launch{reinterpret_cast<CUfunction>(function), grid, threads, shared_bytes, early, cooperative, {}};
    size_t offset, size, index = 0;
    for (; driver().parameter(launch.function, index, &offset, &size) == CUDA_SUCCESS; ++index) {
        uint64_t value = 0;
        int slot = -1;
        size_t given = sizeof(CUdeviceptr);
        if (index < parameters.size()) {
            slot = parameters[index].first;
            const auto& bytes = parameters[index].second;
            if (slot < 0) given = bytes.size();
            if (given > sizeof value) return std::nullopt;
            if (slot < 0) std::memcpy(&value, bytes.data(), given);
        }
        if (size != given || index == MAX_PARAMETERS) return std::nullopt;
        launch.parameters.push_back({slot, value});
    }
    if (index < parameters.size() || index > parameters.size() + 2) return std::nullopt;
    return launch;
}

// (Relaunch.usable, the kernels that Triton keeps, lists of hooks) of Relaunch.watched, for each launch
using Watched = std::vector<std::tuple<py::object, py::dict, std::vector<py::list>>>;

struct Call {
    Watched watched;
    Launch main;
    std::optional<Launch> sums;          // of the kernel that adds up partial gradients
    std::vector<int64_t> partial_grads;  // their shape; empty: none
    bool works;                          // with a workspace
    int64_t slots;                       // bytes of it before the slots of rows; 0: no such slots
};

// Whether Triton would do the same now, and nobody observes what it launches.
bool usable(const Call& call) {
    for (const auto& each : call.watched)
        if (!std::get<0>(each)().cast<bool>()) return false;
    return true;
}

// The same without Python's lock, which in a thread of autograd takes longer than all the rest: whether Triton still
// has its kernels, and hooks were not added to its lists.  `Store::is_observed` tells it of other hooks.
bool quiet(const Call& call) {
    for (const auto& [_, kernels, hooks] : call.watched) {
        if (!PyDict_GET_SIZE(kernels.ptr())) return false;
        for (const auto& each : hooks)
            if (PyList_GET_SIZE(each.ptr())) return false;
    }
    return true;
}

void destroy(Call* call) {
    py::gil_scoped_acquire gil;
    delete call;
}

using Shared = std::shared_ptr<const Call>;

// Calls by their layouts, and the workspaces of streams; each copy of the package that a process has loaded has its own.
// It is never destroyed, because threads of autograd outlive main.  Calls that are removed are destroyed after the lock
// is free: that takes Python's lock, whose holder may wait for this one.
struct Store {
    std::mutex lock;
    std::unordered_map<std::string, Shared> calls[2];  // forward, backward
    std::map<std::pair<int64_t, uintptr_t>, Tensor> workspaces;  // of devices and streams
    int64_t plans = 0;  // tuned_plans.choices
    std::atomic<bool> is_observed = false;  // whether Python had to make the last call of `norm`, because of a hook
    py::object backward;  // operators._backward

    explicit Store(py::object backward) : backward(std::move(backward)) {}

    Shared find(bool is_backward, const std::string& key) {
        std::lock_guard hold(lock);
        const auto at = calls[is_backward].find(key);
        return at == calls[is_backward].end() ? nullptr : at->second;
    }

    void keep(bool is_backward, const std::string& key, Shared call, int64_t plans_of_call) {
        if (plans_of_call < plans) return;
        if (plans_of_call > plans) forget(false), forget(true);
        plans = plans_of_call;
        if (count(is_backward) >= MAX_CALLS) forget(is_backward);
        std::lock_guard hold(lock);
        std::swap(calls[is_backward][key], call);
    }

    size_t count(bool is_backward) {
        std::lock_guard hold(lock);
        return calls[is_backward].size();
    }

    void forget(bool is_backward) {
        std::unordered_map<std::string, Shared> gone;
        std::lock_guard hold(lock);
        gone.swap(calls[is_backward]);
    }
};

// -- what decides how a call is launched ------------------------------------------------------------------------------

// Whether torch must see the ops: a mode, a transform, a tracer, the profiler (`operators._observed`).
bool observed() {
    const auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return included.has_any(c10::DispatchKeySet({
               c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PythonDispatcher,
               c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
               c10::DispatchKey::Functionalize, c10::DispatchKey::Tracer, c10::DispatchKey::PreDispatch,
           })) ||
           c10::impl::TorchDispatchModeTLS::any_modes_set() || at::impl::PythonTorchFunctionTLS::stack_len() ||
           at::hasCallbacks();
}

// Whether the memory of a tensor is all that it is.
bool is_plain(const Tensor& tensor) {
    static constexpr c10::DispatchKeySet usual({
        c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::ADInplaceOrView,
        c10::DispatchKey::AutocastCUDA,
    });
    return tensor.is_cuda() && ((tensor.key_set() - usual).raw_repr() & ~c10::full_backend_mask) == 0;
}

class Key {
  public:
    explicit Key(const Tensor& x) : device_(x.device()) {
        bytes.clear();
        complete = x.is_cuda() && c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice() == device_;
        add(static_cast<int64_t>(device_.index()));
    }

    template <class Value>
    void add(const Value& value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }

    void add(const Tensor& tensor) {
        if (!tensor.defined()) return bytes.push_back(0);
        complete = complete && tensor.device() == device_ && is_plain(tensor);
        if (!complete) return;
        const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
        complete = address;
        bytes.push_back(address % ALIGNED ? 1 : 2);
        bytes.push_back(static_cast<char>(tensor.scalar_type()));
        bytes.push_back(static_cast<char>(tensor.dim()));
        add_all(tensor.sizes());
        add_all(tensor.strides());
    }

    bool complete;
    static thread_local std::string bytes;

  private:
    void add_all(at::IntArrayRef values) {
        bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
    }

    c10::Device device_;
};

thread_local std::string Key::bytes;

struct ForwardInputs {
    Tensor x, weight, bias, residual;
    double eps, offset;
    bool center;

    bool key(bool statistics) const {
        if (!x.defined()) return false;
        Key key(x);
        for (const auto* tensor : {&x, &weight, &bias, &residual}) key.add(*tensor);
        key.add(eps), key.add(offset), key.add(center), key.add(statistics);
        return key.complete;
    }
};

struct BackwardInputs {
    Tensor dy, x, weight, rstd, mean, dresidual_out;
    std::optional<at::ScalarType> bias_dtype;
    double offset;
    bool weight_wanted;

    bool key() const {
        if (!dy.defined()) return false;
        Key key(x);
        for (const auto* tensor : {&dy, &x, &weight, &rstd, &mean, &dresidual_out}) key.add(*tensor);
        key.add(bias_dtype ? static_cast<int64_t>(*bias_dtype) : -1), key.add(offset), key.add(weight_wanted);
        return key.complete;
    }
};

// -- calls ------------------------------------------------------------------------------------------------------------

CUdeviceptr address_of(const Tensor& tensor) {
    return tensor.defined() ? reinterpret_cast<CUdeviceptr>(tensor.data_ptr()) : 0;
}

CUstream stream_of(const Tensor& tensor) {
    void* stream = nullptr;
    if (driver().stream(tensor.get_device(), &stream)) throw std::runtime_error("torch has no current stream");
    return static_cast<CUstream>(stream);
}

// The workspace of a stream; none if Python must provide it: there is none yet, or a graph is captured, which has its
// own.
Tensor workspace_of(Store& store, const Tensor& x, CUstream stream) {
    CUstreamCaptureStatus status{};
    if (driver().capturing(stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE) return {};
    std::lock_guard hold(store.lock);
    const auto at = store.workspaces.find({x.get_device(), reinterpret_cast<uintptr_t>(stream)});
    return at == store.workspaces.end() ? Tensor() : at->second;
}

Tensor rows_like(const Tensor& x, at::ScalarType dtype) { return at::empty(x.sizes(), x.options().dtype(dtype)); }

struct Outputs {
    Tensor y, residual_out, mean, rstd;
};

// None if Python must provide a workspace.
std::optional<Outputs> run_forward(Store& store, const Call& call, const ForwardInputs& in, bool statistics) {
    enum { X, RESIDUAL, WEIGHT, BIAS, Y, RESIDUAL_OUT, MEAN, RSTD, WORKSPACE, SLOTS, PARTIALS, COUNT };
    const auto stream = stream_of(in.x);
    std::array<CUdeviceptr, COUNT> at{};
    const auto workspace = call.works ? workspace_of(store, in.x, stream) : Tensor();
    if (call.works && !workspace.defined()) return std::nullopt;
    at[WORKSPACE] = address_of(workspace);
    if (call.slots) at[SLOTS] = at[WORKSPACE] + call.slots;
    Outputs out;
    out.y = rows_like(in.x, in.x.scalar_type());
    if (in.residual.defined()) {
        const auto same = in.x.scalar_type() == in.residual.scalar_type();
        out.residual_out = rows_like(in.x, same ? in.x.scalar_type() : at::kFloat);
    }
    if (statistics) {
        const auto columns = in.x.size(-1);
        out.rstd = at::empty({in.x.numel() / columns}, in.x.options().dtype(at::kFloat));
        if (in.center) out.mean = at::empty_like(out.rstd);
    }
    at[X] = address_of(in.x), at[RESIDUAL] = address_of(in.residual);
    at[WEIGHT] = address_of(in.weight), at[BIAS] = address_of(in.bias);
    at[Y] = address_of(out.y), at[RESIDUAL_OUT] = address_of(out.residual_out);
    at[MEAN] = address_of(out.mean), at[RSTD] = address_of(out.rstd);
    call.main(at.data(), stream);
    return out;
}

struct Gradients {
    Tensor dx, dweight, dbias, narrow_dx;
};

std::optional<Gradients> run_backward(Store& store, const Call& call, const BackwardInputs& in) {
    enum { DY, X, WEIGHT, MEAN, RSTD, DRESIDUAL_OUT, DX, NARROW_DX, DW, DB, PARTIAL_GRADS, WORKSPACE, PARTIALS, COUNT };
    const auto stream = stream_of(in.x);
    std::array<CUdeviceptr, COUNT> at{};
    const auto workspace = call.works ? workspace_of(store, in.x, stream) : Tensor();
    if (call.works && !workspace.defined()) return std::nullopt;
    at[WORKSPACE] = address_of(workspace);
    Gradients out;
    Tensor partial_grads;
    out.dx = rows_like(in.x, in.x.scalar_type());
    if (in.dy.scalar_type() != in.x.scalar_type()) out.narrow_dx = rows_like(in.x, in.dy.scalar_type());
    if (in.weight.defined() && in.weight_wanted) out.dweight = at::empty(in.weight.sizes(), in.weight.options());
    if (in.bias_dtype) out.dbias = at::empty({in.x.size(-1)}, in.x.options().dtype(*in.bias_dtype));
    if (!call.partial_grads.empty()) partial_grads = at::empty(call.partial_grads, in.x.options().dtype(at::kFloat));
    at[DY] = address_of(in.dy), at[X] = address_of(in.x), at[WEIGHT] = address_of(in.weight);
    at[MEAN] = address_of(in.mean), at[RSTD] = address_of(in.rstd);
    at[DRESIDUAL_OUT] = address_of(in.dresidual_out), at[DX] = address_of(out.dx);
    at[NARROW_DX] = address_of(out.narrow_dx), at[DW] = address_of(out.dweight), at[DB] = address_of(out.dbias);
    at[PARTIAL_GRADS] = address_of(partial_grads);
    call.main(at.data(), stream);
    if (call.sums) {
        const auto& first = out.dweight.defined() ? out.dweight : out.dbias;
        const auto& last = out.dbias.defined() ? out.dbias : out.dweight;
        const std::array<CUdeviceptr, 3> sums{at[PARTIAL_GRADS], address_of(first), address_of(last)};
        (*call.sums)(sums.data(), stream);
    }
    return out;
}

// The gradients by a call that was made before; none if there is none, or if it must be made by Python.
std::optional<Gradients> gradients_as_before(Store& store, const BackwardInputs& in) {
    if (at::GradMode::is_enabled() || observed() || store.is_observed || !in.key()) return std::nullopt;
    const auto call = store.find(true, Key::bytes);
    if (!call || !quiet(*call)) return std::nullopt;
    try {
        return run_backward(store, *call, in);
    } catch (const std::runtime_error&) {  // as by Python, which says more, or finds another way
        return std::nullopt;
    }
}

Gradients gradients_by_python(Store& store, const BackwardInputs& in) {
    py::gil_scoped_acquire gil;
    const auto given = [](const Tensor& tensor) { return tensor.defined() ? py::cast(tensor) : py::none(); };
    py::object bias_dtype = py::none();
    if (in.bias_dtype) {
        auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(*in.bias_dtype));
        bias_dtype = py::reinterpret_borrow<py::object>(dtype);
    }
    const py::tuple found = store.backward(given(in.dy), given(in.x), given(in.weight), given(in.rstd),
                                              given(in.mean), given(in.dresidual_out), bias_dtype, in.offset,
                                              in.weight_wanted);
    const auto taken = [&found](size_t i) { return found[i].is_none() ? Tensor() : found[i].cast<Tensor>(); };
    return {taken(0), taken(1), taken(2), taken(3)};
}

// An argument that autograd takes for a tensor only if there is one.
std::optional<Tensor> optional_of(const Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// As `operators._Norm`.  The tensors of `forward` come first, in the order of their gradients.
struct Norm : torch::autograd::Function<Norm> {
    static constexpr bool is_traceable = true;
    enum Input { X, WEIGHT, BIAS, RESIDUAL, STORE, OUT, IN, INPUTS };

    static variable_list forward(AutogradContext* context, const Tensor&, const std::optional<Tensor>&,
                                 const std::optional<Tensor>&, const std::optional<Tensor>&, Store* store,
                                 const Outputs& out, const ForwardInputs& in) {
        const bool residual = in.residual.defined();
        context->set_materialize_grads(false);
        context->save_for_backward({residual ? out.residual_out : in.x, in.weight, out.mean, out.rstd});
        context->saved_data["store"] = reinterpret_cast<int64_t>(store);
        context->saved_data["offset"] = in.offset;
        context->saved_data["residual"] = residual;
        context->saved_data["y"] = static_cast<int64_t>(in.x.scalar_type());
        if (in.bias.defined()) context->saved_data["bias"] = static_cast<int64_t>(in.bias.scalar_type());
        return residual ? variable_list{out.y, out.residual_out} : variable_list{out.y};
    }

    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const auto dtype = [context](const char* name) {
            return static_cast<at::ScalarType>(context->saved_data[name].toInt());
        };
        BackwardInputs in;
        in.dy = gradients[0], in.x = saved[0], in.weight = saved[1], in.mean = saved[2], in.rstd = saved[3];
        if (gradients.size() > 1) in.dresidual_out = gradients[1];
        if (!in.dy.defined()) in.dy = at::zeros(in.x.sizes(), in.x.options().dtype(dtype("y")));
        size_t edge = X;  // inputs that there are have edges, in their order
        in.weight_wanted = in.weight.defined() && context->needs_input_grad(++edge);
        if (context->saved_data.count("bias") && context->needs_input_grad(++edge)) in.bias_dtype = dtype("bias");
        const bool residual_wanted = context->saved_data["residual"].toBool() && context->needs_input_grad(++edge);
        in.offset = context->saved_data["offset"].toDouble();
        auto* store = reinterpret_cast<Store*>(context->saved_data["store"].toInt());
        auto out = gradients_as_before(*store, in);
        if (!out) out = gradients_by_python(*store, in);
        variable_list found(INPUTS);
        found[X] = out->narrow_dx.defined() ? out->narrow_dx : out->dx;
        found[WEIGHT] = out->dweight, found[BIAS] = out->dbias;
        if (residual_wanted) found[RESIDUAL] = out->dx;  // torch casts it to a narrower dtype
        return found;
    }
};

bool unpack(py::handle given, Tensor& tensor) {
    if (given.is_none()) return true;
    if (!THPVariable_CheckExact(given.ptr())) return false;  // a subclass may do anything
    tensor = THPVariable_Unpack(given.ptr());
    return true;
}

// (y,) or (y, residual_out) by a call that was made before; None if Python must make it.  plans: tuned_plans.choices.
py::object norm(Store& store, py::handle x, py::handle weight, py::handle bias, py::handle residual, double eps,
                bool center, double offset, int64_t plans) {
    ForwardInputs in;
    in.eps = eps, in.offset = offset, in.center = center;
    if (!unpack(x, in.x) || !unpack(weight, in.weight) || !unpack(bias, in.bias) || !unpack(residual, in.residual))
        return py::none();
    if (store.plans != plans || observed()) return py::none();
    bool wanted = false;
    if (at::GradMode::is_enabled())
        for (const auto* tensor : {&in.x, &in.weight, &in.bias, &in.residual})
            wanted = wanted || (tensor->defined() && tensor->requires_grad());
    if (!in.key(wanted)) return py::none();
    const auto call = store.find(false, Key::bytes);
    if (!call) return py::none();
    if ((store.is_observed = !usable(*call))) return py::none();
    Tensor y, residual_out;
    try {
        py::gil_scoped_release none;
        const auto out = run_forward(store, *call, in, wanted);
        if (!out) y = Tensor();
        else if (wanted) {
            auto outputs = Norm::apply(in.x, optional_of(in.weight), optional_of(in.bias), optional_of(in.residual),
                                       &store, *out, in);
            y = outputs[0];
            if (outputs.size() > 1) residual_out = outputs[1];
        } else y = out->y, residual_out = out->residual_out;
    } catch (const std::runtime_error&) {
        return py::none();  // a thread may have no context yet: Triton makes it; or Python says more about the failure
    }
    if (!y.defined()) return py::none();
    if (residual_out.defined()) return py::make_tuple(y, residual_out);
    return py::make_tuple(y);
}

// -- what Python keeps ------------------------------------------------------------------------------------------------

Shared call_of(Watched watched, const Described& main, const std::optional<Described>& sums,
               std::vector<int64_t> partial_grads, bool works, int64_t slots) {
    auto kept = launch_of(main);
    std::optional<Launch> kept_sums;
    if (sums) kept_sums = launch_of(*sums);
    if (!kept || (sums && !kept_sums)) return nullptr;
    return Shared(new Call{std::move(watched), *std::move(kept), std::move(kept_sums), std::move(partial_grads), works,
                           slots},
                  destroy);
}

Tensor tensor_of(const std::optional<Tensor>& given) { return given ? *given : Tensor(); }

void keep_forward(Store& store, const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& residual, double eps, bool center, double offset, bool statistics,
                  int64_t plans, Watched watched, const Described& main, std::optional<int64_t> slots) {
    const ForwardInputs in{x, tensor_of(weight), tensor_of(bias), tensor_of(residual), eps, offset, center};
    if (!driver().complete() || !in.key(statistics)) return;
    const auto key = Key::bytes;
    auto call = call_of(std::move(watched), main, std::nullopt, {}, slots.has_value(), slots.value_or(0));
    if (call) store.keep(false, key, std::move(call), plans);
}

void keep_backward(Store& store, const Tensor& dy, const Tensor& x, const std::optional<Tensor>& weight,
                   const Tensor& rstd, const std::optional<Tensor>& mean, const std::optional<Tensor>& dresidual_out,
                   const std::optional<at::ScalarType>& bias_dtype, bool weight_wanted, double offset,
                   int64_t plans, Watched watched, const Described& main, const std::optional<Described>& sums,
                   std::vector<int64_t> partial_grads, bool works) {
    const BackwardInputs in{dy,         x,      tensor_of(weight), rstd, tensor_of(mean), tensor_of(dresidual_out),
                            bias_dtype, offset, weight_wanted};
    if (!driver().complete() || !in.key()) return;
    const auto key = Key::bytes;
    auto call = call_of(std::move(watched), main, sums, std::move(partial_grads), works, 0);
    if (call) store.keep(true, key, std::move(call), plans);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("is_complete", [] { return driver().complete(); });
    py::class_<Store, std::unique_ptr<Store, py::nodelete>>(module, "Store")
        .def(py::init<py::object>())
        .def("norm", torch::wrap_pybind_function(&norm))
        .def("keep_forward", torch::wrap_pybind_function(&keep_forward))
        .def("keep_backward", torch::wrap_pybind_function(&keep_backward))
        .def("forget", &Store::forget)
        .def("give_workspace", [](Store& store, int64_t device, uintptr_t stream, std::optional<Tensor> words) {
            std::lock_guard hold(store.lock);
            if (!words) store.workspaces.erase({device, stream});
            else store.workspaces[{device, stream}] = *words;
        });
}
