#include <thimble/autograd/apply.h>

#include <string>

#include <thimble/core/error.h>

namespace thimble::apply_detail {

/// Throws a copy of `error` with the module path at its end, unless an inner call has appended it.
template <class E>
[[noreturn]] void throw_with_path(const E& error) {
  const std::string text = error.what(), path(path_name(context().path));
  const std::string end = path.empty() ? "" : ", in " + path;
  throw E(text.ends_with(end) ? text : text + end);
}

tape::Origin origin_of_constant(const OpType& type, std::span<const Tensor> inputs, bool is_recording) noexcept {
  tape::Origin origin = tape::Origin::constant;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    const bool is_listed = i < static_cast<std::size_t>(ops::Needs::max_operands);
    if (is_listed && !type.differentiable[static_cast<int>(i)]) continue;
    if (is_recording && (t.leaf() || t.origin() == tape::Origin::recorded)) continue;  // not trained here
    const tape::Origin of_operand = t.origin_unrecorded();
    if (of_operand == tape::Origin::gradient) return of_operand;
    if (of_operand == tape::Origin::unrecorded) origin = of_operand;
  }
  return origin;
}

void throw_operands(const OpType& type, std::size_t given, int taken) {
  throw_with_path(ValueError(std::string(type.name) + ": " + std::to_string(given) + " operands, and it takes " +
                             std::to_string(taken)));
}

void rethrow_with_path() {
  try {
    throw;
  } catch (const ShapeError& error) {
    throw_with_path(error);
  } catch (const DTypeError& error) {
    throw_with_path(error);
  } catch (const DeviceError& error) {
    throw_with_path(error);
  } catch (const ValueError& error) {
    throw_with_path(error);
  }
}

}  // namespace thimble::apply_detail
