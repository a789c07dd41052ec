#include <thimble/core/numbers/quant_code.h>

namespace thimble::quant {
namespace {

constexpr DynamicTable tables[2] = {make_dynamic_table(false), make_dynamic_table(true)};

}  // namespace

const DynamicTable& dynamic_table(bool is_signed) noexcept { return tables[is_signed ? 1 : 0]; }

}  // namespace thimble::quant
